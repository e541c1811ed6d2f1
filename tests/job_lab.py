"""Jobs for tests: their own registry and clock over the real database, with manual runs and dispatches."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from bson import ObjectId

from models import job, job_attempt
from models.database import Document, server_now
from models.job import JobState
from models.job_attempt import JobOutcome
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import seconds
from queue_manager.items import DueItem
from queue_manager.leases import Leases
from queue_manager.operations.jobs import JobList
from services.due_work import Limits
from services.job_queues import Jobs
from services.job_queues.dispatch import Dispatch
from services.job_queues.registry import Registry
from services.job_queues.runner import Runner, RunReport
from tests.rooms import T0, HandClock

LEASE, PERIOD = seconds(30), seconds(5)


class Lab:
    """Everything that takes part in job queues, in this process.

    A job's function is the entry of `works` for its name at the time it runs; `ran` lists the arguments of each call.
    """

    def __init__(self, clock: Callable[[], datetime] | None = None, *names: str) -> None:
        self.hand = HandClock()
        self.retention: timedelta | None = None
        self.clock = clock or self.hand
        self.registry = Registry()
        self.jobs = Jobs(self.registry, clock=self.clock)
        self.ran: list[tuple[Any, ...]] = []
        self.works: dict[str, Callable[..., Any]] = {}
        self._tokens = count(1)
        for name in names or ("mail", "report"):
            self.register(name)

    def register(self, name: str, **repetition: Any) -> None:
        def work(*arguments: Any, run: Any) -> Any:
            self.ran.append(arguments)
            act = self.works.get(name)
            return act(*arguments, run=run) if act else None

        self.registry.register(name, work, **repetition)

    def run(self, name: str, *arguments: Any, **options: Any) -> str:
        """Store a job that nothing stands against; return its id."""
        stored = self.jobs.run(name, *arguments, **options)
        assert stored is not None
        return str(stored["_id"])

    def runner(self, name: str = "mail", **options: Any) -> Runner:
        token = options.pop("token", None) or f"run-{next(self._tokens)}"
        settings = {"lease": LEASE, "budget": LEASE, "epoch": None, **options}
        return Runner(name=name, registry=self.registry, clock=self.clock, token=token, **settings)

    def run_through(self, name: str = "mail", **options: Any) -> RunReport:
        return self.runner(name, **options).run()

    def executing(self, id: str, *, token: str = "elsewhere", lease: timedelta = LEASE) -> Document:
        """Start the job as a worker elsewhere would; return it as that worker knows it."""
        found = self.jobs.get(id)
        self.start(found, token=token, lease=lease)
        return found

    def start(self, found: Document, *, token: str = "elsewhere", lease: timedelta = LEASE) -> None:
        """Start a job as it was read."""
        now = self.clock()
        assert job_attempt.start(found, token=token, now=now, until=now + lease)

    def dispatching(self, epoch: int | None = None, *, lease: timedelta = LEASE) -> Dispatch:
        return Dispatch(
            leases=Leases("job-queues", lease),
            clock=self.clock,
            limits=Limits(batch=500, max_queue=20_000, ahead=200),
            ahead=PERIOD,
            epoch=epoch,
            retention=self.retention,
            declared=self.registry.repetitions(),
        )

    def dispatch(
        self, epoch: int | None = None, *, messages: int = 0, lease: timedelta = LEASE
    ) -> tuple[list[DueItem], dict[str, int]]:
        """Dispatch once, while `messages` wait in the broker; return what would be sent, and what was noted besides.

        The lease is by the clock of Redis, which no hand moves.
        """
        items, noted = [], dict[str, int]()
        work = self.dispatching(epoch, lease=lease)
        for batch in work.take_due(lambda: Backlog(messages)):
            work.mark_dispatched(batch)
            items += batch.items
            noted.update(batch.other_counts)
        return items, noted

    def names_dispatched(self, epoch: int | None = None, **options: Any) -> list[str]:
        return sorted(item.args[0] for item in self.dispatch(epoch, **options)[0])

    def end_run(self, item: DueItem) -> None:
        """Let the task of a queue have succeeded."""
        with self.dispatching().attempt(item) as attempts:
            attempts.done.add(item.lease)

    def serve(self, epoch: int | None = None) -> list[RunReport]:
        """Dispatch, and run what is dispatched as workers would."""
        reports = []
        for item in self.dispatch(epoch)[0]:
            reports.append(self.run_through(item.args[0], token=item.task_id, epoch=epoch))
            self.end_run(item)
        return reports

    def state(self, id: str) -> str:
        return str(self.jobs.get(id)["state"])

    def states(self) -> dict[str, int]:
        """Return how many jobs there are in each state that has any."""
        found: dict[str, int] = {}
        for of_name in count_jobs().values():
            for state, number in of_name.items():
                found[state] = found.get(state, 0) + number
        return found


def count_jobs() -> dict[str, dict[str, int]]:
    """Count the jobs by name and state, one by one."""
    found: dict[str, dict[str, int]] = {}
    for one in job.jobs().find({"attempts": {"$gte": 0}}, {"name": 1, "state": 1}):
        of_name = found.setdefault(one["name"], {})
        of_name[one["state"]] = of_name.get(one["state"], 0) + 1
    return found


def start_job(id: str, *, token: str = "worker", lease: timedelta = LEASE) -> Document:
    """Start a job that is due, as a worker elsewhere would; return it as it was before."""
    document = job.jobs().find_one(ObjectId(id))
    assert document is not None
    now = max(server_now(), document["due"])  # two processes know the server's clock to within a round trip
    assert job_attempt.start(document, token=token, now=now, until=now + lease)
    return document


def end_job(id: str, state: JobState, *, token: str = "worker", **outcome: Any) -> None:
    """Start a job that is due, and end it in `state`."""
    document = start_job(id, token=token)
    assert job_attempt.finish(document, JobOutcome(state=state, **outcome), token=token, now=server_now())


def lost_lease(id: str) -> None:
    """Let the lease of an executing job have ended long ago."""
    job.jobs().update_one({"_id": ObjectId(id)}, {"$set": {"claim.claimed_until": T0 - seconds(1)}})


def successes(id: str) -> int:
    """Count the attempts that the history calls a success."""
    history = (job.jobs().find_one(ObjectId(id)) or {})["history"]
    return sum(entry["state"] == "success" for entry in history)


def listed(limit: int, **asked: Any) -> list[Any]:
    """Return the ids on all pages of a list of jobs, each of which is full but the last, or is partial."""
    ids: list[Any] = []
    jobs, cursor = JobList(**asked), None
    while True:
        page = jobs.page(cursor, limit)
        assert len(page.jobs) == limit or page.is_partial or page.cursor is None
        ids += [found["_id"] for found in page.jobs]
        if (cursor := page.cursor) is None:
            return ids


def only(lab: Lab) -> dict[str, Any]:
    """Return the only job there is."""
    [found] = lab.jobs.list()
    return found
