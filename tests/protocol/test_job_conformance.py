"""`jobs.py` and the code agree: each write is executed in every state from which the specification takes it.

The documents are stored as the state of the specification says, and compared with the following state afterwards.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pymongo import DeleteMany, InsertOne, WriteConcern
from pymongo.errors import DuplicateKeyError

from models import executing_job, job, job_attempt, job_operations
from models.database import Document
from models.job import JobState, NameBusy
from models.job_attempt import EndedAttempt, JobOutcome
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.process import process_name
from services.job_queues import WrongState
from services.job_queues.dispatch import reap
from tests.job_lab import LEASE, Lab
from tests.protocol.checker import reachable
from tests.protocol.jobs import Claim, Ended, Job, JobProtocol, Queue, Read, Reservation, Run
from tests.real_servers import Servers
from tests.rooms import T0

IDS = ["one", "another"]
NOW, PAST, LATER = T0, T0 - seconds(1), T0 + minutes(1)
OUTCOMES = {
    "success": JobOutcome(state=JobState.SUCCESS),
    "failure": JobOutcome(state=JobState.FAILURE, backoff=seconds(5), error="no"),
    "final failure": JobOutcome(state=JobState.FAILURE, error="no"),
    "canceled": JobOutcome(state=JobState.CANCELED),
    "interrupted": JobOutcome(state=JobState.PENDING, is_counted=False),
}
WITHOUT_WRITE = (
    "reads",
    "executes",
    "puts off",
    "returns",
    "raises",
    "stops",
    "is interrupted",
    "dies",
    "another task",
)
"""What the words of steps that write nothing contain."""


@dataclass
class RealQueue:
    """The jobs of one name in MongoDB, and what is done to them."""

    lab: Lab

    def store(self, jobs: tuple[Job, ...]) -> None:
        """Store documents in these states, without waiting for the journal."""
        job.jobs().with_options(write_concern=WriteConcern(w=1)).bulk_write(
            [DeleteMany({}), *(InsertOne(document(at, one)) for at, one in enumerate(jobs) if one.state != "deleted")]
        )

    def stored(self) -> tuple[Job, ...]:
        found = {one["_id"]: one for one in job.jobs().find()}
        return tuple(as_job(found.get(id)) for id in IDS)

    def perform(self, words: str, before: Queue) -> None:
        number, at = (int(found[1]) if (found := re.search(rf"{one} (\d)", words)) else 0 for one in ("run", "job"))
        run = before.runs[number] or Run()
        steps: dict[str, Callable[[], object]] = {
            r"run . starts .*": lambda: self.start(number, run),
            r"run . reserves .*": lambda: self.reserve(number, run),
            r"run . writes that .*": lambda: self.finish(number, min(run.ended), words),
            r"run . claims .*": lambda: self.hand_over(number, run, is_refused="refused" in words),
            r"run . renews .*": lambda: job_attempt.renew(IDS[at], token=token(number), until=NOW + LEASE),
            r"the time of .* comes": lambda: self.change(at, {"waiting": PAST}),
            r"the reservation of .* ends": lambda: self.change(at, {"reserved.until": PAST}),
            r"the lease of .* ends": lambda: self.change(at, {"claim.claimed_until": PAST}),
            r"job . is found lost": self.reap,
            r"a new leader makes failed jobs due": lambda: job.make_failed_due(NOW),
            r"an operator cancels .*": lambda: self.lab.jobs.cancel(IDS[at]),
            r"an operator retries .*": lambda: self.lab.jobs.retry(IDS[at]),
            r"an operator removes .*": lambda: self.lab.jobs.remove(IDS[at]),
        }
        (act,) = [act for pattern, act in steps.items() if re.fullmatch(pattern, words)]
        act()

    def start(self, number: int, run: Run) -> None:
        first, *others = [as_read(one) for one in run.next]
        condition, change = job_attempt._start(first, token(number), NOW, NOW + LEASE, batch=others)
        try:
            job.jobs().update_one(condition, change)
        except DuplicateKeyError:  # as `job_attempt.start` reports it
            with pytest.raises(NameBusy):
                job_attempt.start(first, token=token(number), now=NOW, until=NOW + LEASE)

    def reserve(self, number: int, run: Run) -> None:
        (other,) = run.next
        job.jobs().update_many(*job_attempt._reserve([as_read(other)], token(number), NOW))

    def finish(self, number: int, ended: Ended, words: str) -> None:
        is_stored = "refused" not in words
        for _ in range(2 if "asks" in words else 1):
            written = job_attempt.finish(as_read(ended.read), OUTCOMES[ended.outcome], token=token(number), now=NOW)
            assert written == is_stored

    def hand_over(self, number: int, run: Run, *, is_refused: bool) -> None:
        assert run.executing is not None
        ended = [
            EndedAttempt(job=as_read(one.read), outcome=OUTCOMES[one.outcome], is_reserved=not one.is_claimed)
            for one in run.ended
        ]
        is_claimed = job_attempt.hand_over(
            ended,
            as_read(run.executing),
            token=token(number),
            now=NOW,
            until=NOW + LEASE,
            batch=[as_read(one) for one in run.batch],
        )
        assert is_claimed != is_refused

    def reap(self) -> None:
        (lost,) = executing_job.find()
        assert reap(lost, NOW)

    def change(self, at: int, changed: Document) -> None:
        assert job.jobs().update_one({"_id": IDS[at]}, {"$set": changed}).modified_count == 1

    def refuse_what_is_not_allowed(self, jobs: tuple[Job, ...]) -> None:
        """Nobody changes a job that a run has reserved, or one that is executing."""
        for at, one in enumerate(jobs):
            if one.state == "executing":
                for change in (self.lab.jobs.retry, self.lab.jobs.remove):
                    with pytest.raises(WrongState):
                        change(IDS[at])
            elif one.reserved is not None and not one.reserved.is_over:
                found = self.lab.jobs.get(IDS[at])
                assert job_operations.make_due(found, due=NOW, priority=None, now=NOW) is None
                assert job_operations.remove(found, now=NOW) is None
                assert job_operations.cancel(found, now=NOW, grace=LEASE) is None
        assert self.stored() == jobs


def token(number: int) -> str:
    return f"run-{number}"


def as_read(read: Read) -> Document:
    """Return a job as a run has read it."""
    return {"_id": IDS[read.job], "name": "mail", "waiting": PAST, "attempts": read.attempts}


def document(at: int, one: Job) -> Document:
    found: Document = {
        **dict.fromkeys(("due", "created", "updated"), PAST),
        "_id": IDS[at],
        "name": "mail",
        "arguments": [at],
        "key": str(at),
        "priority": 0,
        "history": [],
        "state": one.state,
        "attempts": one.attempts,
    }
    if one.waiting != "never":
        found["waiting"] = PAST if one.waiting == "now" else LATER
    if one.claim is not None:
        until = PAST if one.claim.is_over else NOW + LEASE
        found["claim"] = {"token": token(one.claim.run), "worker": process_name(), "claimed_until": until}
        found["claim"] |= {"canceled_at": PAST, "ends_at": LATER} if one.claim.is_canceled else {}
        found |= {"page": [IDS[other] for other in one.claim.batch]} if one.claim.batch else {}
    if one.reserved is not None:
        until = PAST if one.reserved.is_over else NOW + job_attempt.RESERVATION
        found["reserved"] = {"token": token(one.reserved.run), "worker": process_name(), "until": until}
    return found | ({"alone": True} if one.is_alone else {}) | ({"losses": one.losses} if one.losses else {})


def as_job(found: Document | None) -> Job:
    """Return a document as the specification has it."""
    if found is None:
        return Job(state="deleted", waiting="never")
    claim, reserved, waiting = found.get("claim"), found.get("reserved"), found.get("waiting")
    batch = tuple(IDS.index(other) for other in found.get("page", []))
    return Job(
        state=found["state"],
        waiting="never" if waiting is None else "now" if waiting <= NOW else "later",
        attempts=found["attempts"],
        claim=claim and Claim(number_of(claim), claim["claimed_until"] <= NOW, "canceled_at" in claim, batch),
        reserved=reserved and Reservation(number_of(reserved), reserved["until"] <= NOW),
        is_alone="alone" in found,
        losses=found.get("losses", 0),
    )


def number_of(hold: Document) -> int:
    return int(hold["token"].removeprefix("run-"))


def visible(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Return what is stored, without what the specification remembers to judge it."""
    return tuple(one._replace(is_canceled=False, has_succeeded=False) for one in jobs)


def writes(protocol: JobProtocol) -> Iterator[tuple[str, Queue, Queue]]:
    """Yield each step that writes, once for all states that differ in nothing it reads."""
    known = set[Any]()
    for before in reachable(protocol):
        for words, after in protocol.next_states(before):
            if not any(part in words for part in WITHOUT_WRITE):
                key = (words, visible(before.jobs), known_to_run(words, before))
                if key not in known:
                    known.add(key)
                    yield words, before, after


def known_to_run(words: str, queue: Queue) -> Any:
    """Return what a step uses of what its run knows."""
    number = re.match(r"run (\d) (starts|reserves|writes|claims)", words)
    if number is None or (run := queue.runs[int(number[1])]) is None:
        return None
    if number[2] == "writes":
        return min(run.ended)
    return run.next or (run.ended, run.executing, run.batch)


def sample(steps: Iterable[tuple[str, Queue, Queue]], every: int) -> Iterator[tuple[str, Queue, Queue]]:
    """Yield the first of each kind of step, and every n-th after it; numbers make no other kind."""
    counts = Counter[str]()
    for step in steps:
        kind = re.sub(r"\d+", "N", step[0])
        if counts[kind] % every == 0:
            yield step
        counts[kind] += 1


@pytest.fixture
def real(clean: Servers) -> RealQueue:
    return RealQueue(Lab())


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "bounds",
    [{"failures": 1}, {"faults": 1}, {"operations": 1}, {"runs": 1, "failures": 1, "operations": 1}],
    ids=lambda bounds: " and ".join(bounds),
)
@pytest.mark.parametrize("every", [pytest.param(10, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.stress)])
def test_jobs_take_the_steps_of_the_specification(
    real: RealQueue, figure: Callable[[str], None], bounds: dict[str, int], every: int
) -> None:
    executed, seen = 0, set[tuple[Job, ...]]()
    protocol = JobProtocol(**{"failures": 0, "faults": 0, "operations": 0, **bounds})
    for words, before, after in sample(writes(protocol), every):
        stored = visible(before.jobs)
        real.store(stored)
        if stored not in seen:
            seen.add(stored)
            real.refuse_what_is_not_allowed(stored)
        real.perform(words, before)
        assert real.stored() == visible(after.jobs), (words, before)
        executed += 1
    figure(f"jobs and their specification: {executed:,} writes from {len(seen):,} states, no difference")
