"""Threads that change the same jobs concurrently, over many rounds: exactly one of them wins."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bson import ObjectId

from models import executing_job, job, job_attempt
from models.database import Document
from models.job import JobState, NameBusy
from models.job_attempt import JobOutcome
from queue_manager.core.clock import seconds
from tests.job_lab import LEASE, Lab, lost_lease, successes

pytestmark = pytest.mark.usefixtures("persistent")

ROUNDS = 150
DONE = JobOutcome(state=JobState.SUCCESS)
FAILED = JobOutcome(state=JobState.FAILURE, backoff=seconds(0), error="lost")


@pytest.fixture
def racing() -> Iterator[Callable[..., list[Any]]]:
    """Run functions at the same moment, each in a thread; return what each answered."""

    def race(*acts: Callable[[], Any]) -> list[Any]:
        gate = threading.Barrier(len(acts))

        def act(do: Callable[[], Any]) -> Any:
            gate.wait()
            return do()

        return list(threads.map(act, acts))

    with ThreadPoolExecutor(8) as threads:
        yield race


def try_to_cancel(lab: Lab, id: str) -> bool:
    """Return True if the job is canceled; one that was started before is asked to stop."""
    return bool(lab.jobs.cancel(id)["state"] == "canceled")


def try_to_start(lab: Lab, found: Document, token: str = "t") -> bool:
    try:
        return job_attempt.start(found, token=token, now=lab.clock(), until=lab.clock() + LEASE)
    except NameBusy:
        return False


@pytest.mark.slow
def test_cancel_racing_with_start_exactly_one_wins(lab: Lab, racing: Any, figure: Callable[[str], None]) -> None:
    winners = Counter[str]()
    for _ in range(ROUNDS):
        id = lab.run("mail")
        seen = lab.jobs.get(id)
        canceled, started = racing(lambda id=id: try_to_cancel(lab, id), lambda seen=seen: try_to_start(lab, seen))
        assert canceled != started
        found = lab.jobs.get(id)
        assert found["state"] == ("canceled" if canceled else "executing")
        assert ("claim" in found) == started
        assert ("canceled_at" in found.get("claim", {})) == started
        assert "waiting" not in found
        winners["cancel" if canceled else "start"] += 1
        job.jobs().delete_one({"_id": ObjectId(id)})
    figure(f"jobs: cancel racing with start, {ROUNDS} rounds: {dict(winners)}, never both, never neither")


def test_unique_job_racing_with_a_singular_one_exactly_one_is_stored(lab: Lab, racing: Any) -> None:
    for number in range(ROUNDS):
        stored = racing(
            lambda number=number: lab.jobs.run("mail", number, unique=True),
            lambda number=number: lab.jobs.run("mail", number, singular=True),
        )
        assert sum(one is not None for one in stored) == 1


def test_racing_starters_execute_one_job_of_a_name(lab: Lab, racing: Any) -> None:
    for _ in range(ROUNDS // 3):
        ids = [lab.run("mail", number) for number in range(4)]
        seen = [lab.jobs.get(id) for id in ids]
        starts = [lambda one=one: try_to_start(lab, one, token=str(one["_id"])) for one in seen for _ in range(2)]
        started = racing(*starts)
        assert sum(started) == 1
        assert lab.states() == {"executing": 1, "pending": 3}
        job.jobs().delete_many({})


def test_reap_racing_with_finish_one_wins_and_the_job_is_completed_once(lab: Lab, racing: Any) -> None:
    for _ in range(ROUNDS // 2):
        id = lab.run("mail")
        mine = lab.executing(id, token="mine")
        lost_lease(id)
        [seen] = executing_job.find()
        reaped, finished = racing(
            lambda seen=seen: job_attempt.reap(seen, FAILED, now=lab.clock()),
            lambda mine=mine: job_attempt.finish(mine, DONE, token="mine", now=lab.clock()),
        )
        assert reaped != finished
        assert lab.state(id) == ("failure" if reaped else "success")
        assert successes(id) == int(finished)
        job.jobs().delete_many({})


def test_of_concurrent_dispatches_one_sends_a_queue(lab: Lab, racing: Any) -> None:
    lab.dispatch(epoch=1)  # the takeover
    for _ in range(30):
        lab.hand.advance(seconds(1))
        for name in ("mail", "report"):
            lab.run(name)
        lost = lab.run("mail")
        lab.executing(lost)
        lost_lease(lost)
        dispatches = racing(*[lambda: lab.dispatch(epoch=1)] * 3)
        sent = [item for items, _ in dispatches for item in items]
        names = Counter(item.args[0] for item in sent)
        assert sum(noted.get("reaped", 0) for _, noted in dispatches) == 1
        assert names["report"] == 1
        assert 1 <= names["mail"] <= 2  # the dispatch that requeues a lost job frees a queue that another has just sent
        for item in sent:
            lab.end_run(item)
        job.jobs().delete_many({})


def test_concurrent_runs_of_all_names_execute_each_job_once(lab: Lab) -> None:
    names = [f"n{number}" for number in range(4)]
    lab = Lab(lab.hand, *names)
    at_work, overlaps, most = Counter[str](), list[str](), [0]
    guard = threading.Lock()

    def working(name: str) -> Callable[..., None]:
        def work(*_: Any, run: Any) -> None:
            with guard:
                at_work[name] += 1
                most[0] = max(most[0], sum(at_work.values()))
                if at_work[name] > 1:
                    overlaps.append(name)
            threading.Event().wait(0.002)
            with guard:
                at_work[name] -= 1

        return work

    ids = []
    for name in names:
        lab.works[name] = working(name)
        ids += [lab.run(name, number) for number in range(15)]
    with ThreadPoolExecutor(12) as threads:

        def keep_running(name: str) -> int:
            done = 0
            while job.next_due(name) is not None:
                done += lab.run_through(name).succeeded
            return done

        done = sum(threads.map(keep_running, names * 3))
    assert (overlaps, done, len(lab.ran)) == ([], len(ids), len(ids))
    assert [successes(id) for id in ids] == [1] * len(ids)
    assert most[0] > 1  # names ran at the same time
