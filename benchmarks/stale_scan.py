"""Stale thumbnails: the scan of both collections, next to the same queries without their partial index."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from bson import ObjectId

from beat_schedule import SYSTEMS
from benchmarks.harness import Bench, Document, Result, Way, end_leases, expect
from models import database, schema, site
from models.site import STARTED
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import hours, seconds
from services.stale_thumbnails import stale_thumbnails

SITES, STALE, IN_PROGRESS = 1_000_000, 100, 1_000
"""In each collection; the stale ones and the builds in progress are not divided in a quick run."""


def run(bench: Bench) -> Result:
    now = database.server_now()
    sites = bench.sized(SITES)
    for name in site.ALL:
        bench.fill(database.collection(name), documents(sites, now), sites)
    schema.migrate(SYSTEMS)
    with bench.recorder.recording() as sent:
        scan()
    finds = [command for command in sent if "find" in command]

    def without_index() -> list[tuple[str, str]]:
        return [(command["find"], str(one["_id"])) for command in finds for one in _find_by_reading_all(command)]

    expected = {(name, str(_id(number))) for name in site.ALL for number in range(STALE)}

    def check(found: list[tuple[str, str]]) -> None:
        expect("stale sites, each once", len(found), len(expected))
        expect("stale sites", set(found), expected)

    return bench.compare(
        "stale thumbnails",
        f"2 collections of {sites:,} sites, in each {STALE} stale builds and {IN_PROGRESS:,} that are not",
        [
            Way(name="partial index, ours", run=scan, check=check, prepare=end_leases),
            Way(name="reading everything", run=without_index, check=check),
        ],
        rounds=9,
        notes=[
            "Ours includes the leases, and the two updates that the scan makes first, which find nothing to do here."
        ],
    )


def scan() -> list[tuple[str, str]]:
    batches = (batch for work in stale_thumbnails().by_collection() for batch in work.take_due(Backlog))
    return [(item.args[0], item.args[1]) for batch in batches for item in batch.items]


def documents(sites: int, now: datetime) -> Iterator[Document]:
    details = {"name": "A site", "thumbnails": {"desktop": "https://cdn.example/desktop.png"}}
    for number in range(sites):
        document: Document = {"_id": _id(number), "status": "PUBLISHED", "details": details}
        if number < STALE + IN_PROGRESS:
            age = hours(3) + seconds(number) if number < STALE else seconds(number)
            document |= {"details": {"name": "A site"}, "thumbnail_build_in_progress": True, STARTED: now - age}
        yield document


def _id(number: int) -> ObjectId:
    return ObjectId(f"{number + 1:024x}")


def _find_by_reading_all(command: Document) -> list[dict[str, Any]]:
    order = list(command["sort"].items())
    return list(database.collection(command["find"]).find(command["filter"], hint=[("$natural", 1)], sort=order))
