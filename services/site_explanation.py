"""Why the thumbnail build of a site is, or is not, reset."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from models import site
from models.database import Document
from models.document_id import id_candidates, id_text
from models.site import Site, Sites
from queue_manager.core.clock import EPOCH
from queue_manager.core.wording import many, sentence, span, when
from queue_manager.explanation import DispatchState, Explanation, TimelineEvent
from services.item_explanation import ItemExplainer, StateText

if TYPE_CHECKING:
    from services.stale_thumbnails import StaleThumbnails


def explain(work: StaleThumbnails, id: str, dispatch: DispatchState) -> list[Explanation]:
    """Explain the sites that an id names: the id of a site, alone or after the name of its collection."""
    found = (
        (sites, sites.get(key))
        for sites in work.collections
        for key in id_candidates(id.removeprefix(f"{sites.name}{site.SEPARATOR}").removeprefix(f"{sites.name} "))
    )
    return [
        _SiteExplainer(work, sites, document, dispatch).explanation()
        for sites, document in found
        if document is not None
    ]


class _SiteExplainer(ItemExplainer):
    def __init__(self, work: StaleThumbnails, sites: Sites, document: Document, dispatch: DispatchState) -> None:
        self._work, self._sites, self._document = work, sites, document
        self._key = id_text(document["_id"])
        super().__init__(
            dispatch,
            site.item_id(sites.name, self._key),
            lease_id=f"{sites.name} {self._key}",
            title=sites.name,
        )

    def past(self) -> Iterable[TimelineEvent]:
        return map(_outcome, self._sites.outcomes_of(self._key))

    def answer(self) -> StateText:
        state, tone, answer = self._build()
        resets = site.reset_count(self._document)
        return state, tone, answer + (f" It was reset {many(resets, 'time')} in a row." if resets else "")

    def _build(self) -> StateText:
        if self._document.get("thumbnail_build_in_progress") is not True:
            return "not building", "neutral", "No thumbnail build is in progress, so there is nothing to reset."
        if any(self._document.get(name) != value for name, value in self._sites.only.items()):
            wanted = ", ".join(f"{name} {value}" for name, value in self._sites.only.items())
            return "not scanned", "neutral", sentence(f"a build is in progress, but only sites with {wanted} are reset")
        started = self._document.get(site.STARTED)
        if not isinstance(started, datetime) or started < EPOCH or started > self.now + self._work.threshold:
            stamped = f"the next scan sets the time and resets the build after another {span(self._work.threshold)}"
            return "building", "warn", sentence("the build has no valid start time", stamped, self.dispatch.scan())
        building, hangs_at = f"building since {when(started, self.now)}", started + self._work.threshold
        if hangs_at >= self.now:
            hangs = f"the build counts as hung at {when(hangs_at, self.now)}"
            return "building", "good", sentence(building, hangs, self.dispatch.scan(hangs_at))
        item = self._work.due_of(self._sites, Site.of(self._document))
        hangs = f"the build hangs: it takes longer than {span(self._work.threshold)}"
        return self.due_state(self.lease_of(self._work, item), building, hangs)


def _outcome(reset: Document) -> TimelineEvent:
    titles = {"reset": "Build reset", "skipped": "Build had changed", "failed": "Reset failed"}
    return TimelineEvent(
        at=reset["at"], event=titles[reset["outcome"]], error=reset.get("error"), task_id=str(reset["_id"])
    )
