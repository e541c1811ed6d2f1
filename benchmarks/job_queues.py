"""Job queues: jobs per second through one name and through a hundred, storing jobs, and the status of many kept jobs.

The peers are two loops that promise less, and Agenda, from npm, as a real process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from bson import ObjectId

from beat_schedule import SYSTEMS
from benchmarks.harness import Bench, Document, Figure, Result, Way, expect
from models import database, job, job_counts, schema
from models.job import JobState
from queue_manager.core.clock import EPOCH, hours, seconds
from queue_manager.core.settings import settings
from queue_manager.core.wording import many
from services.job_queues import Jobs
from services.job_queues.registry import Registry
from services.job_queues.runner import Runner

JOBS, JOBS_OF_MANY_NAMES = 2_000, 20_000
NEW_JOBS = 2_000
KEPT_JOBS = 1_000_000
NAMES = [f"n{number}" for number in range(100)]
THREADS = 8
PAGE = 32
LEASE = seconds(30)
NODE_DIRECTORY = Path(__file__).parent / "node"
NOTES = [
    "Every job does nothing. Ours also renews the lease of what runs, keeps the history, refuses a late result, and",
    "looks at priorities, pauses and the leader five times a second; the loops know none of this. The first claims and",
    "ends one job at a time; the second claims a page at once, so that what runs cannot be told from what waits.",
    "Ours writes the outcomes of a page of short jobs at once; a job that takes longer is written by itself.",
]

Ran = dict[str, list[int]]
"""The numbers of the jobs that ran, by name, in their order."""


def one_name(bench: Bench) -> Result:
    agenda = Agenda(bench.sized(JOBS))
    if not agenda.is_installed:
        bench.progress.console.print(f"Without Agenda: run `npm ci` in {NODE_DIRECTORY}", highlight=False)
    return _compare(bench, "job queues, one name", ["n0"], JOBS, [agenda.way] if agenda.is_installed else [])


def hundred_names(bench: Bench) -> Result:
    return _compare(bench, "job queues, a hundred names", NAMES, JOBS_OF_MANY_NAMES)


def storing(bench: Bench) -> Result:
    """Store jobs of one name: many in one call, or each in its own."""
    total, jobs = bench.sized(NEW_JOBS), _jobs(NAMES[0])
    schema.migrate(SYSTEMS)

    def run_one_by_one() -> None:
        for number in range(total):
            jobs.run(NAMES[0], number)

    def check(_: object) -> None:
        numbers = [one["arguments"][0] for one in job.jobs().find().sort("_id", 1)]
        expect("jobs that are stored", numbers, list(range(total)))

    def insert_documents() -> None:
        job.jobs().insert_many(list(documents(NAMES[:1], total, database.server_now())))

    return bench.compare(
        "storing jobs",
        f"{total:,} jobs of one name",
        [
            Way(name=name, run=run, check=check, prepare=lambda: job.jobs().delete_many({}))
            for name, run in (
                ("run_many", lambda: jobs.run_many(NAMES[0], [[number] for number in range(total)])),
                ("run, one after another", run_one_by_one),
                ("insert_many of the driver, of ready documents", insert_documents),
            )
        ],
        figures=_figures(total),
        server_clock=_server_seconds,
    )


def status(bench: Bench) -> Result:
    """Count the jobs by name and state while many finished ones are kept."""
    total, jobs = bench.sized(KEPT_JOBS), _jobs(*NAMES)
    schema.migrate(SYSTEMS)
    job.jobs().drop()
    schema.migrate(SYSTEMS)
    finished = (_finished(one) for one in documents(NAMES, total // len(NAMES), database.server_now() - hours(1)))
    bench.fill(job.jobs(), finished, total)
    job_counts.recount(database.server_now())
    expected = {name: {JobState.SUCCESS.value: total // len(NAMES)} for name in NAMES}

    def count_all() -> dict[str, dict[str, int]]:
        group = {"$group": {"_id": {"name": "$name", "state": "$state"}, "jobs": {"$sum": 1}}}
        match = {"$match": job.COUNTED_ATTEMPTS}
        rows = job.jobs().aggregate([match, group], hint="jobs_of_a_name_by_attempts")
        return {row["_id"]["name"]: {row["_id"]["state"]: row["jobs"]} for row in rows}

    def read_status() -> dict[str, dict[str, int]]:
        queues = jobs.status()["queues"]
        return {one["name"]: {state: jobs for state, jobs in one["states"].items() if jobs} for one in queues}

    def check(found: object) -> None:
        expect("jobs by name and state", found, expected)

    ways = (("status, ours", read_status), ("count every job by an index", count_all))
    result = bench.compare(
        "status of job queues",
        f"{total:,} finished jobs of {len(NAMES)} names",
        [Way(name=name, run=run, check=check) for name, run in ways],
        figures=[Figure(heading="ms", of=lambda run: run.seconds * 1e3)],
        server_clock=_server_seconds,
        rounds=5,
    )
    job.jobs().drop()
    return result


def _compare(bench: Bench, title: str, names: Sequence[str], full: int, others: Sequence[Way] = ()) -> Result:
    total = bench.sized(full)
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
        f"{total:,} jobs that are due, of {many(len(names), 'name')} in {many(min(len(names), THREADS), 'thread')}",
        [
            Way(name=name, run=_in_threads(names, way), check=check, prepare=fill)
            for name, way in (
                ("a queue, ours", run_queue),
                ("find_one_and_update, then update_one", claim_one_by_one),
                ("a page under one lease", claim_pages),
            )
        ]
        + [*others],
        figures=_figures(total),
        server_clock=_server_seconds,
        notes=NOTES,
    )


def _figures(total: int) -> list[Figure]:
    return [
        Figure(heading="ms each", of=lambda run: run.seconds / total * 1e3),
        Figure(heading="jobs/s", of=lambda run: total / run.seconds),
        Figure(heading="ms of mongod's CPU each", of=lambda run: run.server_seconds / total * 1e3),
    ]


def _server_seconds() -> float:
    info = database.client().admin.command("serverStatus")["extra_info"]
    return (int(info["user_time_us"]) + int(info["system_time_us"])) / 1e6


def _jobs(*names: str) -> Jobs:
    registry = Registry()
    for name in names:
        registry.register(name, lambda *_: None)
    return Jobs(registry, clock=database.server_now)


class Agenda:
    """Agenda runs the jobs of one name, in a process that is ready before the time is taken."""

    is_installed = (NODE_DIRECTORY / "node_modules" / "agenda").exists()

    def __init__(self, total: int) -> None:
        self._total = total
        self._process: subprocess.Popen[str] | None = None
        self.way = Way(name="Agenda", run=self._run, check=self._check, prepare=self._start)

    def _start(self) -> None:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        self._process = subprocess.Popen(
            ["node", "agenda_jobs.mjs", settings().mongo_db_url, str(self._total)],
            cwd=NODE_DIRECTORY,
            env={**os.environ, "PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        expect("the first line of Agenda", self._process.stdout.readline(), "ready\n")

    def _run(self) -> list[int]:
        assert self._process is not None
        printed, _ = self._process.communicate("go\n", timeout=600)
        numbers: list[int] = json.loads(printed)
        return numbers

    def _check(self, ran: object) -> None:
        expect("jobs of Agenda, each once and in order", ran, list(range(self._total)))


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
        with ThreadPoolExecutor(min(len(names), THREADS)) as pool:
            list(pool.map(lambda name: way(name, ran[name].append), names))
        return dict(ran)

    return run


def _finished(document: Document) -> Document:
    del document["waiting"]
    return {**document, "state": JobState.SUCCESS, "attempts": 1}


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
