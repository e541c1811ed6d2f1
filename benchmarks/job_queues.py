"""Job queues: jobs per second through one name and through ten, beside two loops that promise less."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from uuid import uuid4

from bson import ObjectId

from beat_schedule import SYSTEMS
from benchmarks.harness import Bench, Document, Figure, Result, Way, expect
from models import database, job, schema
from models.job import JobState
from queue_manager.core.clock import EPOCH, hours, seconds
from services.job_queues import Registry
from services.job_queues.runner import Runner

JOBS = 2_000
PAGE = 32
LEASE = seconds(30)
NOTES = [
    "Every job does nothing. Ours also renews the lease of what runs, keeps the history, refuses a late result, and",
    "looks at priorities, pauses and the leader five times a second; the loops know none of this. The first claims and",
    "ends one job at a time; the second claims a page at once, so that what runs cannot be told from what waits.",
]

Ran = dict[str, list[int]]
"""The numbers of the jobs that ran, by name, in their order."""


def one_name(bench: Bench) -> Result:
    return _compare(bench, "job queues, one name", ["n0"], rounds=5)


def ten_names(bench: Bench) -> Result:
    return _compare(bench, "job queues, ten names", [f"n{number}" for number in range(10)], rounds=3)


def _compare(bench: Bench, title: str, names: Sequence[str], *, rounds: int) -> Result:
    total = bench.sized(JOBS)
    schema.migrate(SYSTEMS)
    each = total // len(names)
    filled = list(documents(names, each, database.server_now() - hours(1)))

    def fill() -> None:
        job.jobs().delete_many({})
        job.jobs().insert_many(filled)

    def check(ran: Ran) -> None:
        expect("jobs, each once and in order", ran, {name: list(range(each)) for name in names})
        expect("jobs that are done", job.jobs().count_documents({"state": JobState.SUCCESS}), total)
        expect("jobs that are claimed", job.jobs().count_documents({"claim": {"$ne": None}}), 0)

    return bench.compare(
        title,
        f"{total:,} jobs that are due, a thread for each of {len(names)} names",
        [
            Way(name=name, run=_in_threads(names, way), check=check, prepare=fill)
            for name, way in (
                ("a queue, ours", run_queue),
                ("find_one_and_update, then update_one", claim_one_by_one),
                ("a page under one lease", claim_pages),
            )
        ],
        figures=[
            Figure(heading="ms each", of=lambda run: run.seconds / total * 1e3),
            Figure(heading="jobs/s", of=lambda run: total / run.seconds),
        ],
        rounds=rounds,
        notes=NOTES,
    )


def run_queue(name: str, work: Callable[[int], object]) -> None:
    registry = Registry()
    registry.register(name, work)
    runner = Runner(
        name=name,
        registry=registry,
        clock=database.server_now,
        lease=LEASE,
        budget=hours(1),
        token=uuid4().hex,
        epoch=None,
    )
    runner.run()


def claim_one_by_one(name: str, work: Callable[[int], object]) -> None:
    jobs = job.jobs()
    while True:
        now, token = database.server_now(), uuid4().hex
        taken = jobs.find_one_and_update(
            {"name": name, "waiting": {"$gte": EPOCH, "$lte": now}},
            {
                "$set": {"state": JobState.EXECUTING, "claim": {"token": token, "claimed_until": now + LEASE}},
                "$unset": {"waiting": ""},
            },
            sort=job.EXECUTION_ORDER,
            hint="next_of_a_name",
        )
        if taken is None:
            return
        work(*taken["arguments"])
        done = {"$set": {"state": JobState.SUCCESS}, "$unset": {"claim": ""}}
        jobs.update_one({"_id": taken["_id"], "claim.token": token}, done, hint="_id_")


def claim_pages(name: str, work: Callable[[int], object]) -> None:
    jobs, token = job.jobs(), uuid4().hex
    while page := job.next_jobs(name, now=database.server_now(), limit=PAGE):
        claim = {"token": token, "claimed_until": database.server_now() + LEASE}
        jobs.update_many({"_id": {"$in": [one["_id"] for one in page]}}, {"$set": {"claim": claim}}, hint="_id_")
        for one in page:
            work(*one["arguments"])
            done = {"$set": {"state": JobState.SUCCESS}, "$unset": {"claim": "", "waiting": ""}}
            jobs.update_one({"_id": one["_id"], "claim.token": token}, done, hint="_id_")


def _in_threads(names: Sequence[str], way: Callable[[str, Callable[[int], object]], None]) -> Callable[[], Ran]:
    def run() -> Ran:
        ran: Ran = defaultdict(list)
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(lambda name: way(name, ran[name].append), names))
        return dict(ran)

    return run


def documents(names: Sequence[str], each: int, begin: datetime) -> Iterator[Document]:
    for name in names:
        for number in range(each):
            due = begin + seconds(number / 1000)
            yield {
                "_id": ObjectId(),
                "name": name,
                "arguments": [number],
                "state": JobState.PENDING,
                "priority": 0,
                "due": due,
                "waiting": due,
                "created": begin,
                "updated": begin,
                "attempts": 0,
                "key": f"{name}-{number}",
                "history": [],
            }
