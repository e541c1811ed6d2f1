"""Hypothesis drives the real job queues and the model of them, looking for a step after which they differ."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis
from bson import ObjectId
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from models import executing_job, job, job_attempt, job_counts, job_queue
from models.database import Document
from models.job import JobState, NameBusy
from models.job_attempt import EndedAttempt, JobOutcome
from queue_manager.core.clock import seconds
from queue_manager.core.settings import settings as chosen_settings
from queue_manager.items import DueItem
from services.job_queues import DuplicateJob, WrongState
from services.job_queues.dispatch import lease_name
from tests.job_lab import LEASE, Lab, count_jobs
from tests.services.job_queues.job_model import Attempt, JobModel, Modelled

pytestmark = pytest.mark.scale

NAMES = ("mail", "report")
TOKENS = ("t1", "t2")  # few: a task that is delivered twice has the same one twice
STATES = [state for state in JobState if state is not JobState.EXECUTING]

names, tokens, picks = st.sampled_from(NAMES), st.sampled_from(TOKENS), st.integers(0, 30)
priorities = st.sampled_from([0, 0, 1, -1])
waits = st.sampled_from([0, 0, 1, 4, 40])
ends: st.SearchStrategy[tuple[str, timedelta | None]] = st.sampled_from(
    [("success", None), ("success", None), ("failure", seconds(5)), ("failure", None)]
)


class JobMachine(RuleBasedStateMachine):
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        for collection in (job.jobs(), job_counts.job_counts(), job_queue.queues(), job_queue.leaders()):
            collection.delete_many({})
        with redis.Redis.from_url(chosen_settings().redis_url) as client:
            client.flushall()
        self.lab, self.model = Lab(), JobModel()
        self.attempts: list[Attempt] = []
        self.seen: list[Document] = []  # documents that runners read, some of them long ago
        self.sent: list[DueItem] = []

    @property
    def has_jobs(self) -> bool:
        return bool(self.model.jobs)

    def pick(self, number: int) -> Modelled:
        return list(self.model.jobs.values())[-1 - number % len(self.model.jobs)]

    # Producers and people

    @rule(name=names, argument=st.integers(0, 2), priority=priorities, wait=waits, kind=st.sampled_from("pppsu"))
    def run(self, name: str, argument: int, priority: int, wait: int, kind: str) -> None:
        only: dict[str, Any] = {"unique": kind == "u", "singular": kind == "s"}
        is_blocked = self.model.is_blocked(name, argument, **only)
        stored = self.lab.jobs.run(name, argument, delay=seconds(wait), priority=priority, **only)
        assert (stored is None) == is_blocked
        if stored is not None:
            due = self.lab.clock() + seconds(wait)
            new = Modelled(
                id=str(stored["_id"]), name=name, argument=argument, priority=priority, due=due, waiting=due, **only
            )
            self.model.jobs[new.id] = new

    @precondition(lambda self: self.has_jobs)
    @rule(number=picks)
    def cancel(self, number: int) -> None:
        one = self.pick(number)
        try:
            self.lab.jobs.cancel(one.id)
        except WrongState:
            assert not self.model.cancel(one.id)
        else:
            assert self.model.cancel(one.id)

    @precondition(lambda self: self.has_jobs)
    @rule(number=picks, wait=st.none() | waits, priority=st.sampled_from([None, 0, 5]), by=st.sampled_from("cr"))
    def make_due(self, number: int, wait: int | None, priority: int | None, by: str) -> None:
        one = self.pick(number)
        try:
            if by == "r":
                self.lab.jobs.retry(one.id)
            else:
                priority = 0 if wait is None and priority is None else priority
                delay = None if wait is None else seconds(wait)
                self.lab.jobs.reschedule(one.id, delay=delay, priority=priority)
            done = "done"
        except WrongState:
            done = "refused"
        except DuplicateJob:
            done = "conflict"
        now = self.lab.clock()
        if by == "r":
            expected = self.model.make_due(one.id, now, None, states=("pending", "failure", "canceled", "success"))
        else:
            due = None if wait is None else now + seconds(wait)
            expected = self.model.make_due(one.id, due, priority, states=("pending", "failure", "canceled"))
        assert done == expected

    @rule(states=st.sets(st.sampled_from(STATES), max_size=1), name=st.none() | names)
    def clear(self, states: set[JobState], name: str | None) -> None:
        assert self.lab.jobs.clear(states, name) == self.model.clear({str(state) for state in states}, name)

    @rule(name=names, is_paused=st.booleans())
    def pause_or_resume(self, name: str, is_paused: bool) -> None:
        if is_paused:
            self.lab.jobs.pause([name])
            self.model.paused.add(name)
        else:
            self.lab.jobs.resume([name])
            self.model.paused.discard(name)

    # Runners: what they read, start and write, now or much too late

    @rule(name=names)
    def look(self, name: str) -> None:
        found = job.next_jobs(name, now=self.lab.clock(), limit=100)
        due = self.model.due(name, self.lab.clock())
        assert [self.model.jobs[str(one["_id"])].order for one in found] == [one.order for one in due]
        assert {str(one["_id"]) for one in found} == {one.id for one in due}
        self.seen += found[:2]

    def start_seen(self, found: Document, token: str) -> None:
        id, now = str(found["_id"]), self.lab.clock()
        expected = self.model.start(id, attempts=found["attempts"], token=token, now=now, lease=LEASE)
        try:
            answer = "started" if job_attempt.start(found, token=token, now=now, until=now + LEASE) else "gone"
        except NameBusy:
            answer = "busy"
        assert answer == expected
        if answer == "started":
            self.attempts.append(Attempt(id=id, token=token, number=found["attempts"] + 1))

    @rule(name=names, token=tokens)
    def look_and_start(self, name: str, token: str) -> None:
        for found in job.next_jobs(name, now=self.lab.clock(), limit=1):
            self.start_seen(found, token)

    @precondition(lambda self: self.seen)
    @rule(number=picks, token=tokens)
    def start_by_an_old_look(self, number: int, token: str) -> None:
        self.start_seen(self.seen[-1 - number % len(self.seen)], token)

    def remembered(self, number: int) -> tuple[Attempt, Document]:
        attempt = self.attempts[-1 - number % min(len(self.attempts), 6)]
        return attempt, {"_id": ObjectId(attempt.id), "attempts": attempt.number - 1}

    @precondition(lambda self: self.attempts)
    @rule(number=picks, end=ends)
    def finish(self, number: int, end: tuple[str, timedelta | None]) -> None:
        attempt, document = self.remembered(number)
        state, rest = end
        now = self.lab.clock()
        # One that is written already says so again: a reply may have been lost.
        was_written = self.has_ended(attempt)
        expected = self.model.finish(attempt, state=state, rest=rest, now=now)
        outcome = JobOutcome(state=JobState(state), backoff=rest)
        assert job_attempt.finish(document, outcome, token=attempt.token, now=now) == (expected or was_written)

    @precondition(lambda self: self.attempts and self.seen)
    @rule(number=picks, next_number=picks, end=ends)
    def finish_and_start(self, number: int, next_number: int, end: tuple[str, timedelta | None]) -> None:
        attempt, document = self.remembered(number)
        following = self.seen[-1 - next_number % len(self.seen)]
        if following["_id"] == document["_id"]:
            return
        state, rest = end
        now, id = self.lab.clock(), str(following["_id"])
        was_written = self.has_ended(attempt)
        # One that ends as canceled is written last, so that its name is still busy.
        is_last = self.model.ends_as_canceled(attempt, rest=rest)
        is_finished = is_last or self.model.finish(attempt, state=state, rest=rest, now=now)
        held = Attempt(id=id, token=attempt.token, number=following["attempts"] + 1)
        was_held = self.model.holds(held)
        started = self.model.start(id, attempts=following["attempts"], token=attempt.token, now=now, lease=LEASE)
        if is_last:
            self.model.finish(attempt, state=state, rest=rest, now=now)
        ended = EndedAttempt(job=document, outcome=JobOutcome(state=JobState(state), backoff=rest))
        stored, claimed = job_attempt.finish_and_start(
            [ended], [following], token=attempt.token, now=now, until=now + LEASE
        )
        assert stored == [is_finished or was_written]
        assert claimed == ([following] if started == "started" or was_held else [])
        if started == "started":
            self.attempts.append(held)

    def has_ended(self, attempt: Attempt) -> bool:
        entries = (job.jobs().find_one(ObjectId(attempt.id)) or {"history": []})["history"]
        return any((one.get("run"), one.get("attempt")) == (attempt.token, attempt.number) for one in entries)

    @precondition(lambda self: self.attempts)
    @rule(number=picks)
    def heartbeat(self, number: int) -> None:
        attempt, _ = self.remembered(number)
        one = self.model.jobs.get(attempt.id)
        is_held = one is not None and one.token == attempt.token
        until = self.lab.clock() + LEASE
        assert job_attempt.renew(ObjectId(attempt.id), token=attempt.token, until=until) == is_held
        if one is not None and one.claimed_until is not None and is_held:
            one.claimed_until = max(one.claimed_until, until)

    @precondition(lambda self: self.has_jobs)
    @rule(number=picks)
    def lease_ends(self, number: int) -> None:
        one = self.pick(number)
        if one.claimed_until is not None:
            one.claimed_until = self.lab.clock() - seconds(1)
            job.jobs().update_one({"_id": ObjectId(one.id)}, {"$set": {"claim.claimed_until": one.claimed_until}})

    # Time and leaders

    @rule(by=st.sampled_from([1, 3, 10, 31, 61]))
    def time_passes(self, by: int) -> None:
        self.lab.hand.advance(seconds(by))

    @rule(newer=st.sampled_from([None, 0, 0, 0, 1, -1]))
    def dispatch(self, newer: int | None) -> None:
        self.lab.hand.advance(timedelta(milliseconds=1))  # no two dispatches are at the same moment
        epoch = None if newer is None else max(1, (self.model.epoch or 1) + newer)
        now = self.lab.clock()
        reaped = self.model.dispatch(epoch, now)
        items, noted = self.lab.dispatch(epoch)
        if reaped is None:
            assert (items, noted) == ([], {"refused": 1})
            return
        assert noted == ({"reaped": reaped} if reaped else {})
        sent = [item.args[0] for item in items]
        assert len(sent) == len(set(sent))
        assert all(item.args[1] == self.model.epoch for item in items)
        self.sent += items
        for name in NAMES:
            if self.model.due(name, now) and not self.model.executing(name) and name not in self.model.paused:
                [status] = self.lab.dispatching().leases.statuses([lease_name(name, self.model.epoch)])
                assert status.state == "in-progress"  # somebody has it: now, or from before

    @precondition(lambda self: self.sent)
    @rule(number=picks)
    def run_ends(self, number: int) -> None:
        self.lab.end_run(self.sent.pop(-1 - number % len(self.sent)))

    # What is always true

    @invariant()
    def nothing_differs(self) -> None:
        type(self).steps += 1
        stored = {str(one["_id"]): one for one in job.jobs().find()}
        assert stored.keys() == self.model.jobs.keys()
        for id, expected in self.model.jobs.items():
            found = stored[id]
            assert found["state"] == expected.state
            assert (found["attempts"], found["priority"]) == (expected.attempts, expected.priority)
            assert found.get("waiting") == expected.waiting
            assert ("claim" in found) == (expected.state == "executing")
            if expected.token is not None:
                claim = {"token": expected.token, "claimed_until": expected.claimed_until}
                assert found["claim"].items() >= claim.items()
            assert ("first" in found) == expected.is_first
            if len(found["history"]) < job.MAX_HISTORY:
                assert sum(entry["state"] == "success" for entry in found["history"]) == expected.successes

    @invariant()
    def one_executes(self) -> None:
        executing = [one.name for one in executing_job.find()]
        assert len(executing) == len(set(executing))

    @invariant()
    def counts_agree(self) -> None:
        assert count_jobs() == job_counts.by_name() == self.model.counts()
        assert {*job_queue.pauses()} == self.model.paused


def explore(*, examples: int, steps: int, is_repeatable: bool) -> int:
    JobMachine.steps = 0
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=is_repeatable,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(JobMachine, settings=chosen)
    return JobMachine.steps


@pytest.mark.usefixtures("clean")
def test_jobs_behave_like_their_model(figure: Any) -> None:
    steps = explore(examples=12, steps=40, is_repeatable=True)
    figure(f"jobs: {steps} random steps compared with the model")
    assert steps >= 300


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("clean")
def test_jobs_behave_like_their_model_in_many_steps(figure: Any) -> None:
    steps = explore(examples=200, steps=60, is_repeatable=False)
    figure(f"jobs: {steps} random steps compared with the model")
    assert steps >= 5_000
