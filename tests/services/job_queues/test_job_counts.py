"""Counts of jobs are right at every moment: after each operation, between threads, and when a transaction fails."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from itertools import product
from threading import Event
from typing import Any

import pytest
from bson import Decimal128, ObjectId
from pymongo.errors import ExecutionTimeout

from models import job, job_counts, job_operations, transaction
from models.job import JobState
from models.listing import count_by
from models.transaction import transact
from queue_manager.core.clock import hours, minutes, seconds
from queue_manager.core.errors import Contended
from services.job_queues import UnknownJob, WrongState
from tests.foreign_jobs import add_foreign_jobs
from tests.job_lab import Lab, count_jobs
from tests.rooms import T0

THREADS, OPERATIONS = 6, 120
Between = Callable[[Callable[[], object]], None]


@pytest.fixture
def kept(lab: Lab) -> Lab:
    """Jobs whose counts are kept, as they are once a leader has dispatched."""
    lab.dispatch(epoch=1)
    return lab


def uncounted() -> int:
    return job.jobs().count_documents({"uncounted": True})


def recounted_at() -> Any:
    return (job_counts.job_counts().find_one("*") or {}).get("recounted_at")


def test_jobs_are_counted_before_the_first_dispatch(lab: Lab) -> None:
    lab.run("mail")
    lab.run_through()
    lab.jobs.cancel(lab.run("report"))
    assert recounted_at() is None
    assert job_counts.by_name() == {"mail": {"success": 1}, "report": {"canceled": 1}}


@pytest.mark.parametrize("is_added", [False, True], ids=["marked", "added"])
def test_every_operation_is_counted_immediately(kept: Lab, is_added: bool) -> None:
    ids = [kept.run("mail", number) for number in range(8)]
    canceled = [kept.run("report", number) for number in range(3)]
    for act in (
        kept.run_through,
        lambda: [kept.jobs.cancel(id) for id in canceled],
        lambda: kept.jobs.retry(ids[0]),
        lambda: kept.jobs.reschedule(canceled[0], delay=seconds(60)),
        lambda: kept.jobs.remove(ids[1]),
        lambda: job_operations.clear([JobState.SUCCESS, JobState.PENDING], "mail", now=kept.clock(), limit=3),
        lambda: kept.jobs.clear(["canceled"]),
        lambda: kept.jobs.clear(["success"]),
    ):
        act()
        if is_added:
            job_counts.add_finished(limit=100)
            assert uncounted() == 0
        assert job_counts.by_name() == count_jobs()


def test_unfinished_jobs_of_one_name_are_counted_without_those_of_other_names(kept: Lab) -> None:
    add_foreign_jobs("mail", now=kept.clock())
    for number in range(3):
        kept.run("mail", number)
        kept.run("report", number)
    kept.works["report"] = lambda *_, run: 1 / 0
    kept.run_through("report")
    kept.executing(kept.run("mail"))
    expected = {(name, state): number for name, states in count_jobs().items() for state, number in states.items()}
    for name, state in product(("mail", "report", "nobody"), job.LIVE_STATES):
        counted = kept.jobs.count(name=name, state=state, read=lambda: pytest.fail("all jobs are counted"))
        assert counted == expected.get((name, state), 0)
    assert kept.jobs.count(name="mail") == 4


def test_dispatch_adds_finished_jobs_to_the_counts(kept: Lab) -> None:
    for number in range(5):
        kept.run("mail", number)
    kept.run_through()
    assert uncounted() == 5
    kept.dispatch(epoch=1)
    assert uncounted() == 0
    assert job_counts.job_counts().find_one({"_id": "mail"}) == {"_id": "mail", "success": 5}


def test_changes_of_other_programs_are_recounted_within_an_hour(kept: Lab) -> None:
    for number in range(5):
        kept.run("mail", number)
    kept.run_through()
    kept.dispatch(epoch=1)
    job.jobs().delete_one({"arguments": 3})
    kept.hand.now += hours(1)
    kept.dispatch(epoch=1)
    assert job_counts.by_name() == count_jobs() == {"mail": {"success": 4}}


def test_recount_forgets_names_without_jobs(kept: Lab) -> None:
    for name in ("mail", "report"):
        kept.run(name)
        kept.run_through(name)
    kept.dispatch(epoch=1)
    job.jobs().delete_one({"name": "mail"})
    kept.hand.now += hours(1)
    kept.dispatch(epoch=1)
    assert sorted(one["_id"] for one in job_counts.job_counts().find()) == ["*", "report"]


@pytest.mark.parametrize("error", [ExecutionTimeout("too long", 50), Contended(seconds(5))], ids=["slow", "locked"])
def test_recount_that_fails_delays_neither_the_dispatch_nor_the_retention(
    kept: Lab, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts, minute = list[int](), 0

    def fail(now: datetime) -> None:
        attempts.append(minute)
        raise error

    kept.retention = hours(1)
    kept.jobs.cancel(kept.run("mail"))
    began = kept.hand.now = kept.hand.now + hours(2)
    kept.run("report")
    kept.run_through("report")
    with monkeypatch.context() as patch:
        patch.setattr(job_counts, "recount", fail)
        assert kept.dispatch(epoch=1)[1] == {"deleted": 1}
        for minute in (14, 15, 29, 30, 44):
            kept.hand.now = began + minutes(minute)
            kept.run("mail")
            assert len(kept.serve(epoch=1)) == 1
    assert attempts == [0, 15, 30]
    assert caplog.text.count("could not be recounted") == len(attempts)


def test_recount_that_takes_too_long_changes_nothing_and_is_tried_again(
    kept: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.jobs.cancel(kept.run("mail"))
    kept.dispatch(epoch=1)
    job.jobs().delete_one({})
    kept.hand.now += hours(1)
    for is_slow in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(job_counts, "MAX_RECOUNT_TIME", seconds(1e-6) if is_slow else seconds(60))
            kept.dispatch(epoch=1)
        assert job_counts.by_name() == ({"mail": {"canceled": 1}} if is_slow else {})
        kept.hand.now += minutes(15)
    assert [one["_id"] for one in job_counts.job_counts().find({"_id": {"$ne": "mail"}})] == ["*"]


def test_a_document_with_a_list_of_states_is_not_counted(kept: Lab) -> None:
    kept.run("mail")
    job.jobs().insert_one({"_id": "odd", "name": "mail", "state": ["pending", "success"], "attempts": 1})
    assert job_counts.by_name() == {"mail": {"pending": 1}}
    assert job_counts.recount(kept.clock())


@pytest.mark.slow
def test_recount_may_take_longer_than_a_transaction(kept: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def count_slowly(*arguments: Any, **options: Any) -> job_counts.Numbers:
        time.sleep(1.6)
        return count_by(*arguments, **options)

    monkeypatch.setattr(transaction, "MAX_TRANSACTION", seconds(3))
    monkeypatch.setattr(job_counts, "count_by", count_slowly)
    assert job_counts.recount(kept.clock())


def test_one_of_several_processes_recounts(lab: Lab) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(3):  # the first attempt, and further ones
            assert sum(threads.map(job_counts.begin_recount, [lab.clock()] * THREADS)) == 1
            lab.hand.now += hours(1)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    """Let something happen after the next recount has read the jobs, and before it writes the counts."""

    def patch(act: Callable[[], object]) -> None:
        def act_first(correct: Any) -> Any:
            monkeypatch.setattr(job_counts, "transact", transact)
            act()
            return transact(correct)

        monkeypatch.setattr(job_counts, "transact", act_first)

    return patch


@pytest.mark.parametrize("is_first", [True, False])
def test_recount_is_right_although_jobs_change_while_it_reads(lab: Lab, is_first: bool, between: Between) -> None:
    if not is_first:
        lab.dispatch(epoch=1)
    ids = [lab.run("mail", number) for number in range(9)]
    lab.run_through()
    job_counts.add_finished(limit=6)
    job.jobs().delete_one({"arguments": 0})  # another program does

    def change() -> None:
        lab.jobs.retry(ids[1])
        lab.jobs.retry(ids[8])
        lab.jobs.remove(ids[2])
        lab.jobs.cancel(lab.run("report"))
        job_counts.add_finished(limit=2)
        lab.jobs.remove(ids[7])
        lab.run_through()

    between(change)
    assert job_counts.recount(lab.clock())
    assert job_counts.by_name() == count_jobs() == {"mail": {"success": 6}, "report": {"canceled": 1}}
    while job_counts.add_finished(limit=2):
        assert job_counts.by_name() == count_jobs()


@pytest.mark.parametrize("is_first", [True, False])
def test_recount_is_discarded_if_another_finished_first(lab: Lab, is_first: bool, between: Between) -> None:
    if not is_first:
        lab.dispatch(epoch=1)
    for number in range(3):
        lab.run("mail", number)
    lab.run_through()
    job.jobs().update_many({}, {"$unset": {"uncounted": ""}})  # as release 0.1 finishes them
    between(lambda: job_counts.recount(lab.clock()))
    assert not job_counts.recount(lab.clock())
    assert job_counts.by_name() == count_jobs() == {"mail": {"success": 3}}


def test_changes_of_other_programs_during_a_recount_are_included_in_the_next(kept: Lab, between: Between) -> None:
    for number in range(3):
        kept.run("mail", number)
    kept.run_through()
    kept.dispatch(epoch=1)
    between(lambda: job.jobs().delete_one({}))
    assert job_counts.recount(kept.clock())
    assert job_counts.by_name() == {"mail": {"success": 3}}
    assert job_counts.recount(kept.clock())
    assert job_counts.by_name() == count_jobs() == {"mail": {"success": 2}}


def test_a_recount_does_not_add_what_release_0_2_0_has_counted_meanwhile(
    kept: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.run("mail")
    kept.run_through()
    kept.dispatch(epoch=1)
    job_counts.job_counts().update_one({"_id": "*"}, {"$unset": {"version": ""}})  # as release 0.2.0 writes it
    job_counts.job_counts().delete_one({"_id": "mail"})

    def recounted_by_0_2_0(act: Any) -> Any:
        job_counts.job_counts().insert_one({"_id": "mail", "success": 1})
        job_counts.job_counts().update_one({"_id": "*"}, {"$set": {"recounted_at": kept.clock() + hours(1)}})
        return transact(act)

    transact = transaction.transact
    monkeypatch.setattr(job_counts, "transact", recounted_by_0_2_0)
    assert not job_counts.recount(kept.clock() + hours(2))
    assert job_counts.by_name() == {"mail": {"success": 1}}


@pytest.mark.parametrize(
    "malformed",
    [float("nan"), float("inf"), 1e308, 2**63 - 1, -3, True, None, "5", [0], {"a": 1}, Decimal128("sNaN")],
    ids=str,
)
def test_a_malformed_count_is_zero_until_the_next_recount_corrects_it(malformed: Any, kept: Lab) -> None:
    ids = [kept.run("mail", number) for number in range(3)]
    kept.run_through()
    kept.dispatch(epoch=1)
    job_counts.job_counts().update_one({"_id": "mail"}, {"$set": {"success": malformed}})
    assert job_counts.by_name() == {}

    kept.jobs.cancel(kept.run("mail", 3))
    kept.dispatch(epoch=1)
    kept.jobs.remove(ids[0])
    assert (uncounted(), job_counts.by_name()["mail"]["canceled"]) == (0, 1)

    kept.hand.now += hours(1)
    kept.dispatch(epoch=1)
    assert job_counts.job_counts().find_one({"_id": "mail"}) == {"_id": "mail", "success": 2, "canceled": 1}
    assert recounted_at() == kept.clock()


@pytest.mark.parametrize("malformed", ["today", None, [T0], T0 + hours(1_000)], ids=str)
def test_counts_without_a_past_time_of_their_recount_are_recounted(malformed: Any, kept: Lab) -> None:
    kept.run("mail")
    kept.run_through()
    job_counts.job_counts().update_one({"_id": "*"}, {"$set": {"recounted_at": malformed}})
    job_counts.job_counts().insert_one({"_id": "*attempt", "at": malformed})
    kept.dispatch(epoch=1)
    assert recounted_at() == kept.clock()
    assert job_counts.by_name() == {"mail": {"success": 1}}


@pytest.mark.parametrize("name", [5, {"a": 1}], ids=str)
def test_a_count_whose_name_is_not_text_is_ignored(name: Any, kept: Lab) -> None:
    kept.run("mail")
    kept.run_through()
    job_counts.job_counts().insert_one({"_id": name, "success": 1})
    kept.hand.now += hours(1)
    kept.dispatch(epoch=1)
    assert job_counts.by_name() == {"mail": {"success": 1}}
    assert recounted_at() == kept.clock()


def test_foreign_documents_are_not_counted_as_jobs(kept: Lab) -> None:
    add_foreign_jobs("mail", kept.clock())
    kept.dispatch(epoch=1)
    assert job_counts.by_name() == {}


@pytest.mark.slow
def test_counts_are_right_while_threads_change_jobs_count_and_recount(kept: Lab) -> None:
    numbers, is_over = iter(range(10_000)), Event()

    def change(seed: int) -> None:
        chance, ids = random.Random(seed), list[str]()
        for _ in range(OPERATIONS):
            act = chance.choice([kept.jobs.cancel, kept.jobs.retry, kept.jobs.remove, None, None])
            with suppress(WrongState, UnknownJob, Contended):
                if act is None or not ids:
                    ids.append(kept.run(chance.choice(["mail", "report"]), next(numbers)))
                else:
                    act(chance.choice(ids))
            if chance.random() < 0.1:
                kept.run_through(chance.choice(["mail", "report"]))

    def count() -> None:
        while not is_over.is_set():
            with suppress(Contended):
                job_counts.add_finished(limit=10)
                job_counts.recount(kept.clock())

    with ThreadPoolExecutor(THREADS + 1) as threads:
        counting = threads.submit(count)
        try:
            list(threads.map(change, range(THREADS)))
        finally:
            is_over.set()
        counting.result()
    assert job_counts.by_name() == count_jobs()
    while job_counts.add_finished(limit=10):
        assert job_counts.by_name() == count_jobs()


@pytest.mark.slow
def test_sum_does_not_change_while_jobs_change_their_state(kept: Lab) -> None:
    ids = [kept.run("mail", number) for number in range(100)]

    def change() -> None:
        for id in ids:
            kept.jobs.cancel(id)
            job_counts.add_finished(limit=3)
            kept.jobs.retry(id)

    sums = Counter[int]()
    with ThreadPoolExecutor(1) as threads:
        changing = threads.submit(change)
        while not changing.done():
            sums[sum(job_counts.by_name()["mail"].values())] += 1
        changing.result()
    assert [*sums] == [100]


def test_transaction_that_fails_changes_neither_the_marks_nor_the_counts(
    kept: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.jobs.cancel(kept.run("mail"))

    def fail_at_its_end(act: Callable[[object], object]) -> None:
        def act_and_fail(session: object) -> None:
            act(session)
            raise KeyboardInterrupt

        transact(act_and_fail)

    with monkeypatch.context() as patch:
        patch.setattr(job_counts, "transact", fail_at_its_end)
        with pytest.raises(KeyboardInterrupt):
            job_counts.add_finished(limit=10)
    assert (uncounted(), job_counts.by_name()) == (1, {"mail": {JobState.CANCELED: 1}})


@pytest.mark.parametrize("name", job_counts.RECORD_IDS)
def test_a_job_named_like_an_internal_record_does_not_overwrite_it(name: str, lab: Lab) -> None:
    id = lab.run("mail")
    lab.run_through("mail")
    job.jobs().update_one({"_id": ObjectId(id)}, {"$set": {"name": name}})  # as another program may name it

    assert job_counts.add_finished(limit=10) == 1

    assert recounted_at() is None
    assert job_counts.begin_recount(lab.clock())
    assert job_counts.recount(lab.clock())
    assert recounted_at() == lab.clock()
    assert [one["_id"] for one in job_counts.job_counts().find()] == ["*"]
