"""Why the thumbnail build of a site is, or is not, reset."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from models import item_events, site
from models.database import Document
from models.document_id import id_candidates, id_text
from models.site import Sites
from queue_manager import leases
from queue_manager.core.clock import EPOCH
from queue_manager.core.wording import many, sentence, span, when
from queue_manager.explanation import DispatchState, Explanation, TimelineEvent
from queue_manager.leases import Leases
from queue_manager.system import System
from services.item_explanation import StateText, describe_state, explanation


def explain(
    system: System, leases: Leases, threshold: timedelta, id: str, dispatch: DispatchState
) -> Iterator[Explanation]:
    """Explain the sites that an id names: the id of a site, alone or after the name of its collection."""
    for name, sites in site.ALL.items():
        text = id.removeprefix(f"{name}:").removeprefix(f"{name} ")
        for key in id_candidates(text):
            if (document := sites.get(key)) is not None:
                yield _SiteExplanation(system, leases, threshold, sites, document, dispatch).explanation()


class _SiteExplanation:
    """One site while it is explained."""

    def __init__(
        self,
        system: System,
        leases: Leases,
        threshold: timedelta,
        sites: Sites,
        document: Document,
        dispatch: DispatchState,
    ) -> None:
        self._system, self._leases, self._threshold, self._dispatch = system, leases, threshold, dispatch
        self._sites, self._document, self._now = sites, document, dispatch.now
        self._key = id_text(document["_id"])
        self._history = item_events.of_item(system.name, f"{sites.name} {self._key}")

    def explanation(self) -> Explanation:
        state, tone, answer = self._answer()
        resets = site.reset_count(self._document)
        often = f" It was reset {many(resets, 'time')} in a row." if resets else ""
        return explanation(
            self._system,
            site.item_id(self._sites.name, self._key),
            (state, tone, answer + often),
            self._dispatch,
            self._history,
            title=self._sites.name,
            events=map(_outcome, self._sites.outcomes_of(self._key)),
        )

    def _answer(self) -> StateText:
        if self._document.get("thumbnail_build_in_progress") is not True:
            return "not building", "neutral", "No thumbnail build is in progress, so there is nothing to reset."
        if any(self._document.get(name) != value for name, value in self._sites.only.items()):
            wanted = ", ".join(f"{name} {value}" for name, value in self._sites.only.items())
            return "not scanned", "neutral", sentence(f"a build is in progress, but only sites with {wanted} are reset")
        started = self._document.get(site.STARTED)
        if not isinstance(started, datetime) or started < EPOCH or started > self._now + self._threshold:
            stamped = "the next scan sets the time and resets the build after another"
            return (
                "building",
                "warn",
                sentence(
                    f"the build has no valid start time; {stamped} {span(self._threshold)}", self._dispatch.scan()
                ),
            )
        building, hangs_at = f"building since {when(started, self._now)}", started + self._threshold
        if hangs_at >= self._now:
            hangs = f"the build counts as hung at {when(hangs_at, self._now)}"
            return "building", "good", sentence(building, hangs, self._dispatch.scan(hangs_at))
        lease = self._leases.detail(leases.name(f"{self._sites.name} {self._key}", started))
        state, tone, clause = describe_state(lease, self._dispatch, self._history, queue=self._system.queue)
        return state, tone, sentence(building, f"the build hangs: it takes longer than {span(self._threshold)}", clause)


def _outcome(reset: Document) -> TimelineEvent:
    titles = {"reset": "Build reset", "skipped": "Build had changed", "failed": "Reset failed"}
    return TimelineEvent(
        at=reset["at"], event=titles[reset["outcome"]], error=reset.get("error"), task_id=str(reset["_id"])
    )
