"""Documents of another program in `jobs_data` stop nothing, are never changed, and are counted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId, Regex

from models import executing_job, foreign_job, job, job_pages
from models.document_id import shown_id
from models.job import JobState
from queue_manager.core.clock import hours
from queue_manager.health_rules import Rule
from services import job_queues
from services.job_queues import WrongState
from services.job_queues.adoption import adoption_notes
from tests.foreign_jobs import STATES, add_foreign_jobs, foreign_jobs
from tests.job_lab import Lab, end_job, listed, lost_lease
from tests.models.test_due_at_scale import profile
from tests.rooms import T0

NAME = "mail"


def test_queue_runs_through_its_jobs_and_leaves_the_others_alone(lab: Lab) -> None:
    others = add_foreign_jobs(NAME, lab.clock())
    ids = [lab.run(NAME, number) for number in range(3)]

    assert sum(report.succeeded for report in lab.serve(epoch=1)) == 3

    assert {lab.state(id) for id in ids} == {"success"}
    assert lab.serve(epoch=1) == []
    assert foreign_jobs() == others


@pytest.mark.parametrize(
    "attempts", [[1], [], Decimal128("0"), Decimal128("0.1"), Decimal128("1E+400"), float("inf"), 2**62], ids=str
)
def test_a_job_with_malformed_attempts_is_not_started_and_does_not_stop_others(attempts: Any, lab: Lab) -> None:
    odd, behind, other = lab.run(NAME, priority=1), lab.run(NAME), lab.run("report")
    job.jobs().update_one({"_id": ObjectId(odd)}, {"$set": {"attempts": attempts}})

    lab.serve(epoch=1)

    assert (lab.state(odd), lab.state(behind), lab.state(other)) == ("pending", "success", "success")
    assert (job.next_due(NAME), job.count_due(NAME, lab.clock(), limit=9)) == (None, 0)


@pytest.mark.parametrize(
    "malformed",
    [{"attempts": value} for value in ([1], Decimal128("0"), float("inf"), 2**62)]
    + [{"waiting": value} for value in ([T0], [T0 + hours(1), "x", T0])],
    ids=str,
)
def test_a_malformed_due_job_fails_once_and_does_not_stop_others(malformed: Any, lab: Lab) -> None:
    odd, behind, other = lab.run(NAME), lab.run(NAME), lab.run("report")
    job.jobs().update_one({"_id": ObjectId(odd)}, {"$set": malformed})
    assert [queue["oldest_due"] for queue in lab.jobs.status()["queues"]] == [T0, T0]

    lab.serve(epoch=1)
    assert (lab.state(odd), lab.state(behind), lab.state(other)) == ("pending", "success", "success")
    lab.serve(epoch=1)

    assert lab.names_dispatched(epoch=1) == []
    assert (lab.state(odd), lab.jobs.get(odd)["last_error"]) == ("failure", job.MALFORMED_ERROR)
    stats = job_queues.stats()
    assert (stats.problems, stats.late) == ({Rule.FAILING_JOBS: "1 failing job: mail (1)"}, [])


@pytest.mark.parametrize(
    "claim",
    [
        *(None, "none", {}, []),
        *({"token": "elsewhere", "claimed_until": until} for until in ("soon", 1, [T0 - hours(1)], [])),
        [{"token": "elsewhere", "claimed_until": T0 - hours(1)}],
    ],
    ids=str,
)
def test_an_executing_job_with_a_malformed_claim_fails_and_does_not_block_its_queue(claim: Any, lab: Lab) -> None:
    odd, behind, other = lab.run(NAME), lab.run(NAME), lab.run("report")
    lab.executing(odd)
    job.jobs().update_one({"_id": ObjectId(odd)}, {"$set": {"claim": claim}})

    lab.serve(epoch=1)

    assert (lab.state(odd), lab.state(behind), lab.state(other)) == ("failure", "success", "success")
    found = lab.jobs.get(odd)
    assert (found["last_error"], "claim" in found) == (executing_job.MALFORMED_CLAIM_ERROR, False)
    lab.jobs.retry(odd)
    lab.serve(epoch=1)
    assert lab.state(odd) == "success"


def test_a_lost_job_with_a_malformed_page_field_is_executed_again(lab: Lab) -> None:
    odd = lab.run(NAME)
    lab.executing(odd)
    job.jobs().update_one({"_id": ObjectId(odd)}, {"$set": {"page": "none"}})
    lost_lease(odd)
    lab.serve(epoch=1)
    assert lab.state(odd) == "success"


@pytest.mark.parametrize("attempts", [None, "1", -1, float("nan"), []], ids=str)
def test_a_document_that_is_due_but_not_a_job_is_dispatched_once_and_stays_a_problem(attempts: Any, lab: Lab) -> None:
    job.jobs().update_one({"_id": ObjectId(lab.run(NAME))}, {"$set": {"attempts": attempts}})
    (other,) = job.jobs().find()

    lab.serve(epoch=1)

    assert lab.names_dispatched(epoch=1) == []
    del other["waiting"]
    assert repr([other]) == repr(list(job.jobs().find()))
    stats = job_queues.stats()
    assert ([*stats.problems], stats.late) == ([Rule.UNADOPTED_JOBS], [])


@pytest.mark.parametrize("attempts", [2.5, float(2**53 - 1)], ids=str)
def test_a_job_whose_attempts_are_a_float_is_executed(attempts: float, lab: Lab) -> None:
    odd = lab.run(NAME)
    job.jobs().update_one({"_id": ObjectId(odd)}, {"$set": {"attempts": attempts}})
    lab.run_through(NAME)
    assert lab.state(odd) == "success"


@pytest.mark.parametrize(
    "attempts",
    [0, 2**62, 0.5, float("inf"), float("nan"), -1, -0.0, True, None, "1", [], [1], ["a", -1], [None, 2], [[1]]]
    + [Decimal128(text) for text in ("0", "-1", "1E+400", "Infinity", "-Infinity", "NaN")],
    ids=str,
)
def test_a_document_is_a_job_exactly_if_it_is_listed(attempts: Any, lab: Lab) -> None:
    job.jobs().update_one({"_id": ObjectId(lab.run(NAME))}, {"$set": {"attempts": attempts}})
    (document,) = job.jobs().find()
    is_listed = [one["_id"] for one in lab.jobs.list()] == [document["_id"]]
    assert job.is_job(document) is (is_listed and not isinstance(attempts, list | Decimal128))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *product(("attempts", "settled", "losses"), (Decimal128("1"), float("inf"), 2**62)),
        *product(("settled", "losses"), (Decimal128("sNaN"), -1e308)),
    ],
    ids=str,
)
def test_an_executing_job_with_an_odd_number_is_requeued_and_does_not_stop_others(
    field: str, value: Any, lab: Lab
) -> None:
    odd = lab.run(NAME)
    lab.executing(odd)
    job.jobs().update_one({"_id": ObjectId(odd)}, {"$set": {field: value}})
    lab.run("report")
    assert "report" in lab.names_dispatched()
    lab.hand.advance(hours(1))
    assert lab.dispatch()[1]["reaped"] == 1
    assert lab.state(odd) == "failure"
    lab.jobs.status()


@pytest.mark.parametrize(
    "value", [float("nan"), float("-inf"), -1, -1e308, None, "1", [1], Decimal128("1"), Decimal128("sNaN")], ids=str
)
def test_invalid_count_is_read_as_zero(value: Any) -> None:
    assert job.as_count(value) == 0


@pytest.mark.parametrize("value", [2**53 + 1, Int64(2**63 - 1), 1e308], ids=str)
def test_large_count_is_limited_to_an_exact_double(value: Any) -> None:
    assert job.as_count(value) == 2**53


@pytest.mark.parametrize("act", ["cancel", "retry", "remove"])
@pytest.mark.parametrize("state", ["pending", "canceled"])
def test_a_job_with_a_malformed_history_can_be_changed(act: str, state: str, lab: Lab) -> None:
    id = lab.run(NAME)
    if state == "canceled":
        lab.jobs.cancel(id)
    job.jobs().update_one({"_id": ObjectId(id)}, {"$set": {"history": "none"}})
    if (act, state) == ("cancel", "canceled"):
        with pytest.raises(WrongState):
            lab.jobs.cancel(id)
    else:
        changed = getattr(lab.jobs, act)(id)
        assert act == "remove" or len(changed["history"]) == 1


def test_large_jobs_are_read_16_mb_at_a_time(lab: Lab) -> None:
    ids = [lab.run("mail", number, "x" * 1_000_000) for number in range(20)]
    read = job.next_jobs("mail", now=lab.clock(), limit=32)
    assert [str(one["_id"]) for one in read] == ids[: len(read)]
    assert 10 < len(read) < 20
    assert lab.run_through("mail").succeeded == 20
    assert [number for number, _ in lab.ran] == [*range(20)]


def test_documents_made_due_by_release_0_1_are_not_due_after_two_runs_of_their_name(lab: Lab) -> None:
    add_foreign_jobs(NAME, lab.clock())
    now = lab.clock()
    job.jobs().update_many({"state": "failure"}, {"$set": {"waiting": now, "due": now, "first": 1}})
    id = lab.run(NAME)
    assert job.next_jobs(NAME, now=now, limit=10) == [lab.jobs.get(id)]

    lab.serve(epoch=1)
    assert lab.state(id) == "success"
    lab.serve(epoch=1)

    assert lab.names_dispatched(epoch=1) == []
    assert not [one for one in foreign_jobs() if "waiting" in one or "first" in one]


def test_failed_jobs_without_a_time_are_not_listed_as_failures_and_do_not_count_towards_the_limit(lab: Lab) -> None:
    ids = [lab.run(NAME, number) for number in range(3)]
    for id in ids:
        end_job(id, JobState.FAILURE, backoff=hours(1), error="boom")
    for id, odd in zip(ids[1:], ([lab.clock()], Regex("")), strict=True):  # which sort before dates
        job.jobs().update_one({"_id": ObjectId(id)}, {"$set": {"updated": odd}})

    assert [(str(one["_id"]), one["last_error"]) for one in job_pages.failures(1)] == [(ids[0], "boom")]


def test_after_a_job_had_a_list_of_times_the_failures_still_read_only_what_they_return(lab: Lab) -> None:
    ids = [lab.run(NAME, number) for number in range(20)]
    for id in ids:
        end_job(id, JobState.FAILURE, backoff=hours(1), error="boom")
    job.jobs().update_one({"_id": ObjectId(ids[0])}, {"$set": {"updated": [lab.clock()]}})
    job.jobs().delete_one({"_id": ObjectId(ids[0])})  # the index stays a multikey index

    read: Any = job_pages.failures(5)
    assert read.explain()["executionStats"]["totalDocsExamined"] == 5


SORTS = ["created", "due", "updated", "priority", "attempts"]
FILTERS: list[dict[str, Any]] = [{}, {"name": NAME}, {"state": "pending"}, {"search": "a"}]


def test_pages_hold_every_job_once_and_nothing_else(lab: Lab) -> None:
    ids = {lab.run(NAME, f"a{number}") for number in range(3)}
    add_foreign_jobs(NAME, lab.clock())
    ids |= {lab.run(NAME, f"a{number}") for number in range(3, 5)}
    for sort, is_descending, only in product(SORTS, (True, False), FILTERS):
        found = listed(2, **only, sort=sort, is_descending=is_descending)
        assert sorted(map(str, found)) == sorted(ids), (sort, is_descending, only)


def test_foreign_documents_are_counted_and_not_listed_as_queues(lab: Lab) -> None:
    others = add_foreign_jobs("of another program", lab.clock())
    lab.run(NAME)
    status = lab.jobs.status()
    assert status["other_documents"] == len(others)
    assert [queue["name"] for queue in status["queues"]] == ["mail", "report"]
    assert job.names() == ["mail"]
    stats = job_queues.stats()
    assert stats.numbers["other_documents"] == len(others)
    assert stats.details == [
        f"ignored: {len(others)} documents in jobs_data that another program stored; `queue-manager adopt jobs` shows "
        "which of them can be adopted"
    ]


def test_foreign_documents_that_are_counted_up_to_a_limit_are_at_least_so_many(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_job, "MAX_FOREIGN_COUNT", 2)
    add_foreign_jobs(NAME, lab.clock())
    assert job_queues.stats().details[0].startswith("ignored: at least 2 documents in jobs_data")
    [note] = adoption_notes()
    assert note.startswith("at least 2 documents in jobs_data of another program")


def test_unfinished_foreign_documents_are_a_problem_that_names_five(lab: Lab) -> None:
    others = add_foreign_jobs(NAME, lab.clock())
    finished = [one for one in others if one.get("state") in ("success", "cancelled")]
    problem = job_queues.stats().problems[Rule.UNADOPTED_JOBS]
    assert problem.startswith(f"{len(others) - len(finished)} unfinished documents of another program in jobs_data")
    shown = problem.partition("(")[2].removesuffix(" and 4 more)").split(", ")
    assert len(shown) == 5
    assert {*shown} <= {shown_id(one["_id"]) for one in others if one not in finished}
    job.jobs().delete_many({"_id": {"$nin": [one["_id"] for one in finished]}})
    stats = job_queues.stats()
    assert (stats.numbers["other_documents"], stats.problems) == (len(finished), {})


def test_unfinished_foreign_documents_are_counted_without_reading_the_jobs(lab: Lab) -> None:
    add_foreign_jobs(NAME, lab.clock())
    lab.jobs.run_many(NAME, [[number] for number in range(500)])
    with profile(job.JOBS_COLLECTION) as found:
        assert foreign_job.unfinished().count == 9
    assert 9 <= sum(one["keysExamined"] for one in found) < 60


def test_foreign_documents_are_read_with_ids_of_any_type(lab: Lab) -> None:
    for one in add_foreign_jobs(NAME, lab.clock()):
        id = one["_id"]
        name = {5: '{"$numberInt": "5"}'}.get(id, str(id)) if not isinstance(id, dict) else '{"number": 5}'
        assert lab.jobs.get(name) == one


@pytest.mark.parametrize(
    "act",
    [
        lambda jobs, id: jobs.cancel(id),
        lambda jobs, id: jobs.retry(id),
        lambda jobs, id: jobs.reschedule(id, priority=1),
        lambda jobs, id: jobs.remove(id),
    ],
)
def test_foreign_documents_are_not_changed(lab: Lab, act: Callable[[Any, str], Any]) -> None:
    others = add_foreign_jobs(NAME, lab.clock())
    for one in others:
        if not isinstance(one["_id"], dict | int):
            with pytest.raises(WrongState, match=r"stored by another program"):
                act(lab.jobs, str(one["_id"]))
    deletable = [state for state in STATES if state != "executing"]
    assert lab.jobs.count_up_to(100, deletable) == lab.jobs.count_up_to(100, deletable, NAME) == 0
    assert lab.jobs.clear(deletable) == 0
    assert foreign_jobs() == others
