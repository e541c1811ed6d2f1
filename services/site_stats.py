"""Statistics and problems of sites with hung builds."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from models import site
from models.document_id import shown_id
from queue_manager.core.clock import hours
from queue_manager.core.wording import MAX_IDS, first_ids, many
from queue_manager.health_rules import MANY_RESETS, Rule
from queue_manager.system import SystemStats

if TYPE_CHECKING:
    from services.stale_thumbnails import StaleThumbnails

MAX_LISTED = 10
MAX_FAILED = 1_000  # newest failed resets whose sites are checked again


def read_stats(work: StaleThumbnails, *, late: timedelta) -> SystemStats:
    """Return the hung builds by collection, the longest of them, the resets of a day, and sites that were reset often.

    `due` is the number of sites that the next scan resets, `lag_seconds` the time since the oldest of them fell due,
    `failed` the resets that failed in a day, and `stuck` the sites without a thumbnail after many resets. Sites
    that have been due for longer than `late` are named.
    """
    now = work.clock()
    before = now - work.threshold
    day_ago = now - hours(24)
    numbers: dict[str, float] = {"resets_last_day": site.count_resets(day_ago)}
    oldest: list[tuple[datetime, str]] = []
    numbers["failed"], numbers["stuck"] = site.count_failed(day_ago), 0
    for sites in work.collections:
        numbers[f"stuck_{sites.name}"] = sites.count_stuck(before)
        numbers[f"finished_{sites.name}"] = sites.count_finished(before)
        numbers["stuck"] += sites.count_reset_often()
        stale = islice(sites.stale(before), MAX_LISTED)
        oldest += [(one.started_at, f"{sites.name} {shown_id(one.id)}") for one in stale]
    numbers["due"] = sum(numbers[f"{state}_{one.name}"] for one in work.collections for state in ("stuck", "finished"))
    numbers["lag_seconds"] = max([(before - began).total_seconds() for began, _ in oldest], default=0.0)
    oldest.sort()
    details = [f"{name}: the build began {(now - began) / hours(1):.1f} h ago" for began, name in oldest[:MAX_LISTED]]
    stats = SystemStats(
        numbers=numbers, details=details, late=[name for began, name in oldest if before - began > late]
    )
    _add_problems(stats, work, before, day_ago)
    return stats


def _add_problems(stats: SystemStats, work: StaleThumbnails, before: datetime, day_ago: datetime) -> None:
    if stuck := int(stats.numbers["stuck"]):
        shown = [
            f"{sites.name} {shown_id(key)} {resets} times"
            for sites in work.collections
            for key, resets in islice(sites.list_reset_often(after=None, is_descending=True), MAX_IDS)
        ]
        stats.problems[Rule.REPEATED_RESETS] = (
            f"{many(stuck, 'stuck site')}: reset {MANY_RESETS} times in a row or more, without a thumbnail since "
            f"({first_ids(shown, stuck)})"
        )
    if failed := _failed_and_hanging(before, day_ago):
        stats.problems[Rule.FAILED_ITEMS] = (
            f"{many(len(failed), 'failed site')}: the reset failed in the last day and the build still hangs "
            f"({first_ids(failed, len(failed))})"
        )


def _failed_and_hanging(before: datetime, day_ago: datetime) -> list[str]:
    """Return the sites of the newest failed resets that still hang: a later reset may have succeeded."""
    newest = islice(site.list_failed(day_ago, after=None, is_descending=True), MAX_FAILED)
    return [
        f"{sites.name} {shown_id(hung.id)}"
        for sites, keys in site.by_collection(one.id for one in newest)
        for hung in sites.stale_among(keys, before)
    ]
