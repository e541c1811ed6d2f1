"""Sites whose thumbnails are built: `agency_websites` and `instasites`, written by the product and its builder.

    {status, details: {thumbnails: {desktop}}, thumbnail_build_in_progress, thumbnail_process_started_at,
     thumbnail_build_id?}                                                               the product's fields
    {thumbnail_reset_count}                                                             ours

A build is stale when it is in progress since before a cutoff. Each reset is kept for a day in `thumbnail_resets`:

    {_id: the item's token, run, collection, site_id, outcome: reset | skipped | failed, at}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel, ReturnDocument
from pymongo.collection import Collection

from models.claimable import A_DATE
from models.database import Document, collection, value_at
from queue_manager.core.clock import hours

RESETS = "thumbnail_resets"
STARTED = "thumbnail_process_started_at"
DESKTOP = "details.thumbnails.desktop"
NO_LIST: Document = {f"{STARTED}.0": None}  # a list of dates would pass for one
IN_PROGRESS: Document = {"thumbnail_build_in_progress": True}
KEPT = hours(25)  # "in the last day", asked a little late
OFTEN = 5  # resets in a row from which on somebody should look

Outcome = Literal["reset", "skipped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A site whose build hangs."""

    id: ObjectId
    started_at: datetime
    is_finished: bool
    """Its thumbnail is there: only the flag was forgotten."""


@dataclass(frozen=True, kw_only=True)
class Sites:
    """One collection of sites; `only` narrows it to those that count."""

    name: str
    only: Document = field(default_factory=dict)

    def collection(self) -> Collection[Document]:
        return collection(self.name)

    def stale(self, before: datetime) -> Iterator[Site]:
        """Yield the sites whose build started before, and is still said to run; the longest first.

        One whose thumbnail is already there is among them: its builder died after the last upload.
        """
        found = self.collection().find(
            self._stale(before), {STARTED: 1, DESKTOP: 1}, hint="builds_in_progress", sort=[(STARTED, ASCENDING)]
        )
        for site in found:
            is_finished = value_at(site, DESKTOP) is not None
            yield Site(id=site["_id"], started_at=site[STARTED], is_finished=is_finished)

    def stamp(self, now: datetime, *, latest: datetime) -> int:
        """Give `now` as the start to every build without a usable one; return how many.

        Unusable: no date, one before the epoch, or one after `latest`, which the clock of no builder explains.
        """
        usable = {STARTED: {**A_DATE, "$lte": latest}, **NO_LIST}
        result = self.collection().update_many(
            {**IN_PROGRESS, **self.only, "$nor": [usable]}, {"$set": {STARTED: now}}, hint="builds_in_progress"
        )
        return result.modified_count

    def reset(self, site_id: ObjectId, started_at: datetime) -> int | None:
        """Take the build that began at `started_at` back, so that the builder begins anew: one atomic write.

        Returns:
            How many resets in a row that makes, 0 when the thumbnail is there; `None`: that build runs no more.
        """
        count = {"$add": [{"$ifNull": ["$thumbnail_reset_count", 0]}, 1]}
        has_thumbnail = {"$ne": [{"$ifNull": [f"${DESKTOP}", None]}, None]}
        site = self.collection().find_one_and_update(
            {"_id": site_id, **IN_PROGRESS, **self.only, STARTED: started_at},
            [
                {"$set": {"thumbnail_reset_count": {"$cond": [has_thumbnail, "$$REMOVE", count]}}},
                {"$unset": ["thumbnail_build_in_progress", STARTED, "thumbnail_build_id"]},
            ],
            projection={"thumbnail_reset_count": 1},
            return_document=ReturnDocument.AFTER,
        )
        return None if site is None else site.get("thumbnail_reset_count", 0)

    def forget_resets(self) -> None:
        """Clear the count of every site that has its thumbnail by now."""
        self.collection().update_many(
            {"thumbnail_reset_count": {"$gt": 0}, DESKTOP: {"$ne": None}},
            {"$unset": {"thumbnail_reset_count": ""}},
            hint="reset_in_a_row",
        )

    def exists(self, site_id: ObjectId) -> bool:
        return self.collection().find_one({"_id": site_id}, {"_id": 1}) is not None

    def stuck(self, before: datetime) -> int:
        """Count the sites that hang, with the scan's own filter, and have no thumbnail yet."""
        return self._count({**self._stale(before), DESKTOP: None})

    def finished(self, before: datetime) -> int:
        """Count the sites that are said to be built although their thumbnail is there."""
        return self._count({**self._stale(before), DESKTOP: {"$ne": None}})

    def reset_often(self) -> list[Document]:
        """Return `{_id, thumbnail_reset_count}` of the sites that were reset `OFTEN` times or more in a row."""
        often = {"thumbnail_reset_count": {"$gte": OFTEN}}
        found = self.collection().find(often, {"thumbnail_reset_count": 1}, hint="reset_in_a_row", limit=20)
        return list(found)

    def indexes(self) -> list[IndexModel]:
        return [
            IndexModel(
                [(STARTED, ASCENDING)],
                name="builds_in_progress",
                partialFilterExpression={**IN_PROGRESS, **self.only},
            ),
            IndexModel(
                [("thumbnail_reset_count", DESCENDING)],
                name="reset_in_a_row",
                partialFilterExpression={"thumbnail_reset_count": {"$gt": 0}},
            ),
        ]

    def _stale(self, before: datetime) -> Document:
        return {**IN_PROGRESS, **self.only, STARTED: {**A_DATE, "$lt": before}, **NO_LIST}

    def _count(self, where: Document) -> int:
        return self.collection().count_documents(where, hint="builds_in_progress")


AGENCY_WEBSITES = Sites(name="agency_websites")
INSTASITES = Sites(name="instasites", only={"status": "PUBLISHED"})
ALL = {sites.name: sites for sites in (AGENCY_WEBSITES, INSTASITES)}


def record_outcome(token: str, sites: str, site_id: str, outcome: Outcome, *, now: datetime) -> None:
    """Keep what became of one item. A second delivery changes nothing: the first one did it."""
    run = token.partition("-")[0]
    fields = {"run": run, "collection": sites, "site_id": site_id, "outcome": outcome, "at": now}
    collection(RESETS).update_one({"_id": token}, {"$setOnInsert": fields}, upsert=True)


def outcomes(run: str) -> Counter[tuple[str, str]]:
    """Count the items of one run that have reported, by collection and outcome."""
    groups: Any = collection(RESETS).aggregate(
        [
            {"$match": {"run": run}},
            {"$group": {"_id": {"of": "$collection", "outcome": "$outcome"}, "n": {"$sum": 1}}},
        ]
    )
    return Counter({(group["_id"]["of"], group["_id"]["outcome"]): group["n"] for group in groups})


def resets_since(moment: datetime) -> int:
    return collection(RESETS).count_documents({"outcome": "reset", "at": {"$gte": moment}})


def reset_indexes() -> list[IndexModel]:
    return [
        IndexModel([("run", ASCENDING)], name="items_of_a_run"),
        IndexModel([("at", ASCENDING)], name="kept_for_a_day", expireAfterSeconds=int(KEPT.total_seconds())),
    ]


def collections() -> dict[str, list[IndexModel]]:
    """Return what this module keeps, for `migrate`."""
    return {**{name: sites.indexes() for name, sites in ALL.items()}, RESETS: reset_indexes()}
