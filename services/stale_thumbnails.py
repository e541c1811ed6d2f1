"""Stale thumbnails: a site whose thumbnail build hangs is reset, so that the builder starts again.

What is due: a site of `agency_websites`, or a published one of `instasites`, with `thumbnail_build_in_progress` for
longer than a threshold, whether its thumbnail is missing or was stored before the builder died.
Guarantee: a build that was restarted meanwhile keeps its flag; nothing else of a site changes.
Options: `THUMBNAIL_STALE_SECONDS` (2 h; 15 min in development), `THUMBNAIL_BUILD_TASK` (off).
Emits: nothing; each reset site may be handed over to another application's task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from heapq import merge
from typing import Any
from uuid import uuid4

from models import database, site
from models.document_id import id_text, read_id, shown_id
from models.listing import Position, within_part
from models.site import Sites
from queue_manager.core.clock import hours, milliseconds, minutes, parse_utc, seconds, to_iso
from queue_manager.core.errors import NotYetDue, PermanentError, reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.health_rules import MANY_RESETS
from queue_manager.items import DueItem, Item, Listed, State
from queue_manager.system import System
from services import site_explanation
from services.due_work import Due, DueBatch, DueWork, ItemResult, leases_of
from services.site_stats import read_stats

INITIATOR = "ThumbnailHealthCheck"
DEVELOPMENT = {"development", "test", "local"}
RUN_CHECK_DELAY = seconds(10)  # between two checks whether all items of a run have reported

log = get_logger(INITIATOR)
HandOver = Callable[[str, str], None]


@dataclass(frozen=True, kw_only=True)
class StaleThumbnails(DueWork, Listed):
    """The hung builds: what a scan finds, how an item resets one, how a run ends, and the sites as one list.

    Hung builds are due, resets that failed in the last day are failed, and sites without a thumbnail after many resets
    are stuck.
    """

    threshold: timedelta
    """The time after which a build counts as hung."""
    collections: Sequence[Sites] = tuple(site.ALL.values())
    run: str = field(default_factory=lambda: uuid4().hex)
    """The ids of the tasks begin with it, by which their outcomes are counted."""
    hand_over: HandOver | None = None
    """Is called with the collection and the id of each site that was reset."""
    has_timelines: bool = True

    # Scan

    def by_collection(self) -> list[StaleThumbnails]:
        """Return the work of one run as one for each collection: if one fails, the other is still done."""
        return [replace(self, collections=[one]) for one in self.collections]

    def prepare(self) -> Iterator[DueBatch]:
        now = self.clock()
        for sites in self.collections:
            sites.forget_resets()
            if stamped := sites.stamp(now, latest=now + self.threshold):
                yield DueBatch(other_counts={"stamped": stamped})

    def find_due(self, until: datetime) -> Iterator[Due]:
        lists = [map(partial(self.due_of, one), one.stale(until - self.threshold)) for one in self.collections]
        yield from merge(*lists, key=lambda due: due.due_at)

    def due_of(self, sites: Sites, one: site.Site) -> Due:
        """Return the item that resets a site."""
        id = id_text(one.id)
        return Due(
            id=f"{sites.name} {id}",
            due_at=one.started_at,
            args=(sites.name, id, to_iso(one.started_at)),
            counted_as="finished" if one.is_finished else None,
        )

    def task_id(self, due: Due, *, batch: str, number: int) -> str:
        """Return the task's id: it begins with the run, by which the outcomes are counted."""
        return f"{self.run}-{batch}-{number}"

    # Items

    def due_ms(self, item: DueItem) -> int | None:
        started_ms = super().due_ms(item)
        return None if started_ms is None else started_ms + milliseconds(self.threshold)

    def give_up(self, item: DueItem, *, error: str) -> None:
        self.release([item])
        sites, site_id, _ = item.args
        if sites in site.ALL:
            site.record_outcome(item.task_id, sites, site_id, "failed", now=self.clock(), error=error)

    def reset(self, collection: str, site_id: str, started_at: str, *, task_id: str) -> ItemResult:
        """Reset one site if the build that began at `started_at` is still marked as in progress.

        Returns:
            `{reset: true, collection, site_id, resets_in_a_row}`, or `{skipped: true, reason}`.

        Raises:
            PermanentError: an argument is malformed, or the collection is unknown.
        """
        if collection not in site.ALL:
            raise PermanentError(f"collection: {collection!r} is not one of {', '.join(site.ALL)}")
        key, began = read_id(site_id, field="site_id"), parse_utc(started_at, field="started_at")
        if began is None:
            raise PermanentError("started_at: the start of the build is missing")
        sites = site.ALL[collection]
        in_a_row = sites.reset(key, began)
        if in_a_row is None:
            site.record_outcome(task_id, collection, site_id, "skipped", now=self.clock())
            return {"skipped": True, "reason": "Build changed" if sites.get(key) else "Site not found"}
        self._hand_over(collection, shown_id(key))
        try:
            site.record_outcome(task_id, collection, site_id, "reset", now=self.clock())
        except database.Error as error:  # not raised, because a repetition would find that the build has changed
            log.warning("Reset could not be counted", collection=collection, site_id=site_id, error=reason(error))
        if in_a_row >= MANY_RESETS:
            log.warning("Site was reset many times in a row", collection=collection, site_id=site_id, times=in_a_row)
        return {"reset": True, "collection": collection, "site_id": site_id, "resets_in_a_row": in_a_row}

    def _hand_over(self, collection: str, site_id: str) -> None:
        if self.hand_over is None:
            return
        try:
            self.hand_over(collection, site_id)
        except Exception as error:
            # Best effort: the builder's own scan is the guarantee.
            log.warning("Site could not be handed over", collection=collection, site_id=site_id, error=reason(error))

    def log_resets(self, run: str, expected: int, until: str) -> ItemResult:
        """Log how many sites one run has reset, once all of its items have reported or the time is over.

        Raises:
            NotYetDue: some items have not reported.
        """
        counted = site.count_outcomes(run)
        ends_at = parse_utc(until, field="until")
        if counted.total() < expected and ends_at is not None and self.clock() < ends_at:
            raise NotYetDue(RUN_CHECK_DELAY)
        websites, instasites = (counted[sites.name, "reset"] for sites in (site.AGENCY_WEBSITES, site.INSTASITES))
        if websites or instasites:
            log.info(f"Reset {websites} stuck agency website jobs and {instasites} instasite jobs", run=run)
        return {"reset": websites + instasites, "reported": counted.total(), "expected": expected}

    # List

    def items(self, state: State, *, after: Position | None = None, newest_first: bool = True) -> Iterator[Item]:
        """Yield sites: due ones by the start of their build, failed ones by time, stuck ones by their resets."""
        of_one = {"due": self._due, "stuck": self._stuck}.get(state)
        if of_one is not None:
            lists = [of_one(one, within_part(one.name, after), newest_first) for one in self.collections]
            yield from merge(*lists, key=lambda item: item.position[:-1], reverse=newest_first)
        elif state == "failed":
            yield from site.list_failed(self.clock() - hours(24), after=after, is_descending=newest_first)

    def _due(self, sites: Sites, after: Position | None, newest_first: bool) -> Iterator[Item]:
        before = self.clock() - self.threshold
        for one in sites.stale(before, after=after, is_descending=newest_first):
            due_at = one.started_at + self.threshold
            yield Item(
                id=site.item_id(sites.name, id_text(one.id)),
                title=sites.name,
                state="due",
                position=(one.started_at, sites.name, one.id),
                due_at=due_at,
                since=due_at,
                reason="its thumbnail is stored, and only the flag was left" if one.is_finished else None,
                attempts=one.resets,
            )

    def _stuck(self, sites: Sites, after: Position | None, newest_first: bool) -> Iterator[Item]:
        for key, resets in sites.list_reset_often(after=after, is_descending=newest_first):
            yield Item(
                id=site.item_id(sites.name, id_text(key)),
                title=sites.name,
                state="stuck",
                position=(resets, sites.name, key),
                reason=f"reset {resets} times in a row",
                attempts=resets,
            )

    def take(self, ids: Sequence[str]) -> list[DueItem]:
        """Take those of `ids` that hang now and are not in flight."""
        before = self.clock() - self.threshold
        found = ((sites, one) for sites, keys in site.by_collection(ids) for one in sites.stale_among(keys, before))
        return self.take_manually([self.due_of(*one) for one in found])

    def id_of(self, taken: DueItem) -> str:
        collection, key, _ = taken.args
        return site.item_id(collection, key)

    def document(self, id: str) -> Mapping[str, Any] | None:
        found = (sites.get(key) for sites, keys in site.by_collection([id]) for key in keys)
        return next(filter(None, found), None)


def stale_thumbnails(hand_over: HandOver | None = None) -> StaleThumbnails:
    """Return the service of this process."""
    return StaleThumbnails(leases=leases_of(system.name), threshold=threshold(), hand_over=hand_over)


def threshold() -> timedelta:
    """Return the time after which a build counts as hung."""
    chosen = settings()
    if chosen.thumbnail_stale_seconds is not None:
        return seconds(chosen.thumbnail_stale_seconds)
    # An unknown environment gets the longer one, because resetting a production build too early wastes its work.
    return minutes(15) if chosen.app_env in DEVELOPMENT else hours(2)


system: System = System(
    name="stale-thumbnails",
    title="Thumbnails",
    description="Resets thumbnail builds that hang, every hour.",
    every=hours(1),
    at="0 * * * *",
    flag="QM_SITES_FIX_STALE_THUMBNAILS",
    scan_task="tasks.stale_thumbnails.scan_stale_thumbnails",
    item_task="tasks.stale_thumbnails.reset_stale_thumbnail",
    queue="stale-thumbnails",
    trigger="sites/fix-stale-thumbnails",
    page="/thumbnails",
    items=stale_thumbnails,
    item_states=("due", "stuck", "failed"),
    on_time_within=hours(1),  # the time between two scans
    items_name="sites",
    attempts_name="Resets in a row",
    explain=lambda id, dispatch: site_explanation.explain(stale_thumbnails(), id, dispatch),
    stats=lambda: read_stats(stale_thumbnails(), late=system.late_after(settings())),
    collections=lambda: site.SITE_INDEXES,
)
