"""The demo's sites and their thumbnail builder, which hangs now and then.

Twelve sites per collection, always the same: somebody edits one, its thumbnail is void, the builder takes it, and
finishes it or hangs. The start of a build that hangs is moved beyond the threshold at once, so that nobody has to wait.
"""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

from pymongo.collection import Collection
from pymongo.database import Database

from models import site
from models.site import DESKTOP, STARTED
from queue_manager.core.clock import minutes, seconds, truncate
from services.stale_thumbnails import threshold

Site = dict[str, Any]

PERIOD = seconds(5)
SITES = 12  # in each collection
HUNG_AT_START = 5
TAKEN_AT_A_TIME = 2
HANG_CHANCE, EDIT_CHANCE = 0.3, 0.5
_DEMO = {"demo": True}
_BUILDING = {**_DEMO, "thumbnail_build_in_progress": True}


def start(database: Database[Site], now: datetime) -> None:
    """Insert the sites that are not there yet; some of them hang, the others are fine."""
    for sites in _collections(database):
        wanted = [new_site(now, hangs=number < HUNG_AT_START) for number in range(SITES)]
        if missing := wanted[sites.count_documents(_DEMO) :]:
            sites.insert_many(missing)


def go_on(database: Database[Site], now: datetime) -> None:
    """Do what happens in one period: builds end or hang, the builder takes new ones, somebody edits a site."""
    for sites in _collections(database):
        end_builds(sites, now)
        begin_builds(sites, now)
        if random.random() < EDIT_CHANCE:
            sites.update_one({**_idle(), DESKTOP: {"$ne": None}}, {"$set": {DESKTOP: None}})


def new_site(now: datetime, *, hangs: bool) -> Site:
    """Return a published site; one that `hangs` has no desktop thumbnail and began to get it long ago."""
    build = {"thumbnail_build_in_progress": True, STARTED: _long_ago(now)} if hangs else {}
    thumbnail = None if hangs else "desktop.png"
    return {"status": "PUBLISHED", "details": {"thumbnails": {"desktop": thumbnail}}, **build, **_DEMO}


def begin_builds(sites: Collection[Site], now: datetime) -> None:
    """Take a few sites that have no thumbnail and are in nobody's work: also those that were reset."""
    waiting = list(sites.find({**_idle(), DESKTOP: None}, {"_id": 1}, limit=TAKEN_AT_A_TIME))
    began = {"thumbnail_build_in_progress": True, STARTED: truncate(now)}
    sites.update_many({"_id": {"$in": [one["_id"] for one in waiting]}, **_idle()}, {"$set": began})


def end_builds(sites: Collection[Site], now: datetime) -> None:
    """Finish the builds that run, or let them hang."""
    for one in list(sites.find({**_BUILDING, STARTED: {"$gt": now - threshold()}}, {STARTED: 1})):
        same = {"_id": one["_id"], **_BUILDING, STARTED: one[STARTED]}
        if random.random() < HANG_CHANCE:
            sites.update_one(same, {"$set": {STARTED: _long_ago(now)}})
        else:
            ended = {"thumbnail_build_in_progress": "", STARTED: ""}
            sites.update_one(same, {"$set": {DESKTOP: "desktop.png"}, "$unset": ended})


def _idle() -> Site:
    return {**_DEMO, "thumbnail_build_in_progress": {"$ne": True}}


def _long_ago(now: datetime) -> datetime:
    """Return a time since when a build counts as hung."""
    return truncate(now - threshold() - minutes(random.uniform(1, 20)))


def _collections(database: Database[Site]) -> list[Collection[Site]]:
    return [database[name] for name in site.ALL]
