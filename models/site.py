"""Sites with thumbnail builds: collections `agency_websites` and `instasites`, written by the product.

    {status, details: {thumbnails: {desktop}}, thumbnail_build_in_progress, thumbnail_process_started_at,
     thumbnail_build_id?}                                                               the product's fields
    {thumbnail_reset_count}                                                             ours

A build is stale if it has been in progress since before a cutoff. Resets are retained for a day in `thumbnail_resets`:

    {_id: the id of the item's task, run, collection, site_id, outcome: reset | skipped | failed, at, error?}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from pymongo import DESCENDING, IndexModel, ReturnDocument
from pymongo.collection import Collection

from models import listing
from models.database import Document, collection, update_all, value_at
from models.document_id import existing_ids, id_candidates, id_text
from models.due_documents import A_DATE
from models.listing import Position
from models.malformed import readable, typed
from queue_manager.core.clock import hours
from queue_manager.health_rules import MANY_RESETS
from queue_manager.items import Item

RESETS_COLLECTION = "thumbnail_resets"
SEPARATOR = ":"
"""Separates the collection from the site in the id of an item."""
STARTED = "thumbnail_process_started_at"
DESKTOP = "details.thumbnails.desktop"
NO_LIST: Document = {"$not": {"$type": "array"}}  # a list with a date in it matches like the date
IN_PROGRESS: Document = {"thumbnail_build_in_progress": True}
RESET_COUNT = "thumbnail_reset_count"
# Only another program stores a count as one of these types. Infinity is a double.
OFTEN_RESET: Document = {RESET_COUNT: {"$gte": MANY_RESETS, "$not": {"$type": ["array", "double", "decimal"]}}}
FAILED: Document = {"outcome": "failed"}
RESET_RETENTION = hours(25)  # a little more than the last day that is queried

ResetOutcome = Literal["reset", "skipped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A site with a stale build."""

    id: Any
    started_at: datetime
    is_finished: bool
    """The thumbnail exists; only the flag was not cleared."""
    resets: int = 0
    """Number of consecutive resets before."""

    @classmethod
    def of(cls, document: Document) -> Site:
        return cls(
            id=document["_id"],
            started_at=document[STARTED],
            is_finished=value_at(document, DESKTOP) is not None,
            resets=reset_count(document),
        )


@dataclass(frozen=True, kw_only=True)
class Sites:
    """A collection of sites; `only` is an additional filter."""

    name: str
    only: Document = field(default_factory=dict)

    def collection(self) -> Collection[Document]:
        return collection(self.name)

    def stale(self, before: datetime, *, after: Position | None = None, is_descending: bool = False) -> Iterator[Site]:
        """Yield the sites whose build has been in progress since before this time, after a position (start, id).

        Includes sites whose thumbnail exists, because the builder died after the last upload.
        """
        found = listing.walk(
            self.collection(),
            self._stale(before),
            index="builds_in_progress",
            order=(STARTED, "_id"),
            fields=(DESKTOP, RESET_COUNT),
            after=after,
            is_descending=is_descending,
        )
        return map(Site.of, found)

    def list_reset_often(self, *, after: Position | None, is_descending: bool) -> Iterator[tuple[Any, int]]:
        """Yield ids and counts of the sites without a thumbnail after `MANY_RESETS` or more resets, by count and id."""
        order = (RESET_COUNT, "_id")
        found = listing.walk(
            self.collection(),
            self._reset_often(),
            index="reset_in_a_row",
            order=order,
            fields=order,
            after=after,
            is_descending=is_descending,
        )
        for site in found:
            yield site["_id"], site[RESET_COUNT]

    def stale_among(self, ids: Sequence[Any], before: datetime) -> list[Site]:
        """Return those of `ids` that `stale` would yield."""
        found = self.collection().find(
            {**self._stale(before), "_id": {"$in": list(ids)}}, {STARTED: 1, DESKTOP: 1}, hint="_id_"
        )
        return [Site.of(site) for site in found]

    def existing(self, ids: Sequence[Any]) -> list[Any]:
        """Return those of `ids` that sites have."""
        return [one["_id"] for one in self.collection().find({"_id": {"$in": list(ids)}}, {"_id": 1}, hint="_id_")]

    def stamp(self, now: datetime, *, latest: datetime) -> int:
        """Set the start of every build without a valid one to `now`; return the number of builds.

        Invalid: no date, one before 1970, or one after `latest`, which the clock of no builder explains.
        """
        valid = {STARTED: {**A_DATE, "$lte": latest, **NO_LIST}}
        unstamped = {**IN_PROGRESS, **self.only, "$nor": [valid]}
        return update_all(self.collection(), unstamped, {"$set": {STARTED: now}}, hint="builds_in_progress")

    def reset(self, site_id: Any, started_at: datetime) -> int | None:
        """Reset the build that began at `started_at`, in one atomic write, so that the builder starts again.

        Returns:
            The number of resets in a row with this one, 0 if the thumbnail exists; `None` if that build has ended.
        """
        is_count = {"$in": [{"$type": f"${RESET_COUNT}"}, ["int", "long"]]}
        count = {"$add": [{"$cond": [is_count, f"${RESET_COUNT}", 0]}, 1]}
        has_thumbnail = {"$ne": [{"$ifNull": [f"${DESKTOP}", None]}, None]}
        site = self.collection().find_one_and_update(
            {"_id": site_id, **IN_PROGRESS, **self.only, STARTED: started_at},
            [
                {"$set": {RESET_COUNT: {"$cond": [has_thumbnail, "$$REMOVE", count]}}},
                {"$unset": ["thumbnail_build_in_progress", STARTED, "thumbnail_build_id"]},
            ],
            projection={RESET_COUNT: 1},
            return_document=ReturnDocument.AFTER,
        )
        return None if site is None else reset_count(site)

    def forget_resets(self) -> None:
        """Clear the reset count of every site that has a thumbnail."""
        finished = {RESET_COUNT: {"$gt": 0}, DESKTOP: {"$ne": None}}
        update_all(self.collection(), finished, {"$unset": {RESET_COUNT: ""}}, hint="reset_in_a_row")

    def get(self, site_id: Any) -> Document | None:
        return self.collection().find_one({"_id": site_id})

    def outcomes_of(self, site_id: str) -> list[Document]:
        """Return the outcomes of a day for one site, as `record_outcome` stored them."""
        return list(collection(RESETS_COLLECTION).find({"collection": self.name, "site_id": site_id}))

    def count_reset_often(self) -> int:
        return self.collection().count_documents(self._reset_often(), hint="reset_in_a_row")

    def count_stuck(self, before: datetime) -> int:
        """Count the stale sites without a thumbnail, with the filter of the scan."""
        return self._count({**self._stale(before), DESKTOP: None})

    def count_finished(self, before: datetime) -> int:
        """Count the stale sites with a thumbnail."""
        return self._count({**self._stale(before), DESKTOP: {"$ne": None}})

    def indexes(self) -> list[IndexModel]:
        return [
            IndexModel(
                [STARTED, "_id"],
                name="builds_in_progress",
                partialFilterExpression={**IN_PROGRESS, **self.only},
            ),
            IndexModel(
                [(RESET_COUNT, DESCENDING), ("_id", DESCENDING)],
                name="reset_in_a_row",
                partialFilterExpression={RESET_COUNT: {"$gt": 0}},
            ),
        ]

    def _reset_often(self) -> Document:
        # Between two builds, too, so that the problem does not end after each reset.
        return {**OFTEN_RESET, DESKTOP: None, **self.only}

    def _stale(self, before: datetime) -> Document:
        return {**IN_PROGRESS, **self.only, STARTED: {**A_DATE, "$lt": before, **NO_LIST}}

    def _count(self, where: Document) -> int:
        return self.collection().count_documents(where, hint="builds_in_progress")


AGENCY_WEBSITES = Sites(name="agency_websites")
INSTASITES = Sites(name="instasites", only={"status": "PUBLISHED"})
ALL = {sites.name: sites for sites in (AGENCY_WEBSITES, INSTASITES)}


def item_id(collection: str, site_id: str) -> str:
    """Return the id of a site among those of all collections; `site_id` is the text of its id."""
    return f"{collection}{SEPARATOR}{site_id}"


def item_ids(text: str) -> list[str]:
    """Return the ids of items that a collection and the id of a site, as people write it, may mean."""
    name, _, key = text.partition(SEPARATOR)
    return [item_id(name, id_text(one)) for one in id_candidates(key)] if name in ALL else []


def by_collection(ids: Iterable[str]) -> list[tuple[Sites, list[Any]]]:
    """Return, by collection, the ids of the sites that the ids of items, as people write them, name."""
    texts: dict[str, list[str]] = {name: [] for name in ALL}
    for name, _, key in (id.partition(SEPARATOR) for id in ids):
        if name in ALL:
            texts[name].append(key)
    return [(ALL[name], existing_ids(keys, ALL[name].existing)) for name, keys in texts.items() if keys]


def reset_count(document: Document) -> int:
    """Return the number of consecutive resets of a site; 0 if the stored value is not a count."""
    count = document.get(RESET_COUNT)
    return max(count, 0) if isinstance(count, int) else 0


def record_outcome(
    task_id: str, sites: str, site_id: str, outcome: ResetOutcome, *, now: datetime, error: str | None = None
) -> None:
    """Store the outcome of an item. A second delivery changes nothing."""
    run = task_id.partition("-")[0]
    fields = {"run": run, "collection": sites, "site_id": site_id, "outcome": outcome, "at": now}
    if error is not None:
        fields["error"] = error
    collection(RESETS_COLLECTION).update_one({"_id": task_id}, {"$setOnInsert": fields}, upsert=True)


def count_outcomes(run: str) -> Counter[tuple[str, ...]]:
    """Count the finished items of a run by collection and outcome."""
    return listing.count_by(collection(RESETS_COLLECTION), {"run": run}, ["collection", "outcome"])


def count_resets(since: datetime) -> int:
    return collection(RESETS_COLLECTION).count_documents({"outcome": "reset", "at": {"$gte": since}})


def list_failed(since: datetime, *, after: Position | None, is_descending: bool) -> Iterator[Item]:
    """Yield the resets that failed since a time, by time and task."""
    found = listing.walk(
        collection(RESETS_COLLECTION),
        _failed(since),
        index="failed",
        order=("at", "_id"),
        after=after,
        is_descending=is_descending,
    )
    return readable(found, read_failed, of=RESETS_COLLECTION)


def read_failed(reset: Document) -> Item:
    at, sites = typed(reset, "at", datetime), str(reset["collection"])
    error = reset.get("error")
    return Item(
        id=item_id(sites, str(reset["site_id"])),
        title=sites,
        state="failed",
        position=(at, reset["_id"]),
        since=at,
        reason=None if error is None else str(error),
    )


def count_failed(since: datetime) -> int:
    return collection(RESETS_COLLECTION).count_documents(_failed(since), hint="failed")


def _failed(since: datetime) -> Document:
    return {**FAILED, "at": {"$gte": since}}


SITE_INDEXES = {
    **{name: sites.indexes() for name, sites in ALL.items()},
    RESETS_COLLECTION: [
        IndexModel(["at", "_id"], name="failed", partialFilterExpression=FAILED),
        IndexModel("run", name="items_of_a_run"),
        IndexModel("at", name="kept_for_a_day", expireAfterSeconds=int(RESET_RETENTION.total_seconds())),
    ],
}
