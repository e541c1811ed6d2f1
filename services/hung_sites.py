"""The sites of `stale_thumbnails` as people see them.

Due are builds that hang, failed the resets that failed in the last day, and stuck the sites that hang again after each
reset. Nothing is ever in progress: a reset holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from models import database, site
from models.listing import Position
from models.site import Sites
from queue_manager.core.errors import PermanentError
from services.due_work import DueItem
from services.items import Item, Listed, State, merged
from services.stale_thumbnails import item_of, new_run, threshold

BETWEEN = ":"
"""Stands in an id between the collection and the site."""


@dataclass(frozen=True, kw_only=True)
class HungSites(Listed):
    """Both collections as one list."""

    clock: Callable[[], datetime]
    threshold: timedelta

    def items(self, state: State, *, after: Position | None = None, newest_first: bool = True) -> Iterator[Item]:
        """Yield sites: due ones by the start of their build, failed ones by time, stuck ones by their resets."""
        of_one = {"due": self._due, "stuck": self._stuck}.get(state)
        if of_one is not None:
            lists = [of_one(sites, after, newest_first) for sites in site.ALL.values()]
            yield from merged(lists, newest_first=newest_first)
        elif state == "failed":
            yield from map(_failed, site.list_failed(after=after, is_descending=newest_first))

    def _due(self, sites: Sites, after: Position | None, newest_first: bool) -> Iterator[Item]:
        before = self.clock() - self.threshold
        for one in sites.list_stale(before, after=after, is_descending=newest_first):
            yield Item(
                id=_id(sites.name, database.id_text(one.id)),
                title=sites.name,
                state="due",
                position=(one.started_at, one.id),
                due_at=one.started_at + self.threshold,
                since=one.started_at,
                reason="its thumbnail is there: only the flag was forgotten" if one.is_finished else None,
                attempts=one.resets,
            )

    def _stuck(self, sites: Sites, after: Position | None, newest_first: bool) -> Iterator[Item]:
        for key, resets in sites.list_reset_often(after=after, is_descending=newest_first):
            yield Item(
                id=_id(sites.name, database.id_text(key)),
                title=sites.name,
                state="stuck",
                position=(resets, key),
                reason=f"reset {resets} times in a row",
                attempts=resets,
            )

    def take(self, ids: Sequence[str]) -> list[DueItem]:
        """Return those of `ids` that hang now. There is nothing to hold: the reset asks whether it is that build."""
        run, before = new_run(), self.clock() - self.threshold
        return [
            item_of(name, one, run=run)
            for name, keys in _by_collection(ids).items()
            for one in site.ALL[name].stale_among(keys, before)
        ]

    def has(self, id: str) -> bool:
        return any(site.ALL[name].exists(key) for name, keys in _by_collection([id]).items() for key in keys)


def hung_sites() -> HungSites:
    """Return the sites of this process."""
    return HungSites(clock=database.server_now, threshold=threshold())


def _failed(reset: dict[str, object]) -> Item:
    at, sites = reset["at"], str(reset["collection"])
    assert isinstance(at, datetime)
    said = reset.get("error")
    return Item(
        id=_id(sites, str(reset["site_id"])),
        title=sites,
        state="failed",
        position=(at, reset["_id"]),
        since=at,
        reason=None if said is None else str(said),
        attempts=1,
    )


def _id(collection: str, key: str) -> str:
    return f"{collection}{BETWEEN}{key}"


def _by_collection(ids: Sequence[str]) -> dict[str, list[Any]]:
    """Return the sites that ids name; one that names none is left out."""
    found: dict[str, list[Any]] = {}
    for name, _, key in (id.partition(BETWEEN) for id in ids):
        with suppress(PermanentError):
            if name in site.ALL:
                found.setdefault(name, []).append(database.read_id(key, field="id"))
    return found
