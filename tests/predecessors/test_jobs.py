"""Jobs of the JavaScript package SteveJobs in `jobs_data`: reported until they are adopted, and jobs afterwards."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from bson import Int64

from models import foreign_job as model
from models import job, schema
from models.database import Document
from models.job import JobState
from queue_manager.core.clock import minutes
from services import job_queues
from services.adoption import plan
from services.job_queues import adoption
from tests.foreign_jobs import STATES, TEXT_ID, add_foreign_jobs, foreign_job, foreign_jobs
from tests.job_lab import Lab, listed
from tests.real_servers import Servers

NAME = "mail"
SERVER = "jqJ8AGsWfQqDTKx4D"


@pytest.fixture
def lab(clean: Servers) -> Lab:
    return Lab()


def store(name: Any, state: str, now: datetime, *, id: Any = TEXT_ID, **fields: Any) -> str:
    job.jobs().insert_one({**foreign_job(name, state, now, id=id), **fields})
    return str(id)


def stored() -> list[Document]:
    return list(job.jobs().find(sort=[("_id", 1)]))


# Before the adoption


def test_plan_points_to_the_adoption_of_jobs(lab: Lab) -> None:
    assert plan(job_queues.system).notes == []
    store(NAME, "pending", lab.clock())
    (note,) = plan(job_queues.system).notes
    assert note.startswith("1 document in jobs_data of another program; `queue-manager adopt jobs`")


def test_dry_run_counts_by_name_and_state_and_changes_nothing(lab: Lab) -> None:
    add_foreign_jobs(NAME, lab.clock())
    store("report", "pending", lab.clock(), id="r")
    before = stored()

    found = job_queues.adopt(is_dry_run=True)

    assert found.jobs == {
        (NAME, "pending", JobState.PENDING): 1,
        (NAME, "failure", JobState.FAILURE): 3,  # of these, two under a text and one under an ObjectId
        (NAME, "success", JobState.SUCCESS): 1,
        (NAME, "cancelled", JobState.CANCELED): 1,
        (NAME, "executing", JobState.FAILURE): 1,
        ("report", "pending", JobState.PENDING): 1,
    }
    assert (found.rejected, found.adopted) == (4, 0)
    assert stored() == before


# The adoption


def test_each_document_becomes_a_job_with_its_id_and_fields(lab: Lab) -> None:
    now = lab.clock()
    ids = [store(NAME, state, now, id=f"id-of-{state}") for state in STATES]
    before = {one["_id"]: one for one in stored()}

    assert job_queues.adopt(is_dry_run=False).adopted == len(ids)

    assert foreign_jobs() == []
    for id in ids:
        found, old = lab.jobs.get(id), before[id]
        kept = ("_id", "name", "arguments", "due", "created", "data", "serverId")
        assert {name: found[name] for name in kept} == {name: old[name] for name in kept}
        assert found["history"][0] | {"state": old["state"]} == found["history"][0] | old["history"][0]
        assert lab.jobs.find(NAME, *found["arguments"])
    states = [lab.state(id) for id in ids]
    assert states == ["pending", "failure", "success", "canceled", "failure"]
    assert [lab.jobs.get(id)["attempts"] for id in ids] == [0, 1, 1, 0, 1]


def test_pending_jobs_run_in_order_and_failed_ones_after_a_take_over(lab: Lab) -> None:
    now = lab.clock()
    store(NAME, "pending", now, id="second", arguments=[2])
    store(NAME, "pending", now, id="first", arguments=[1], priority=5.0)
    store(NAME, "pending", now, id="later", arguments=[3], due=now + minutes(5))
    store(NAME, "failure", now, id="failed", arguments=[4])
    lab.serve(epoch=1)
    assert job_queues.adopt(is_dry_run=False).adopted == 4

    lab.serve(epoch=1)
    assert lab.ran == [(1,), (2,)]
    lab.serve(epoch=2)
    assert lab.ran == [(1,), (2,), (4,)]
    lab.hand.now += minutes(5)
    lab.serve(epoch=2)
    assert lab.ran == [(1,), (2,), (4,), (3,)]
    assert lab.states() == {"success": 4}
    assert [successes_of(id) for id in ("first", "second", "failed", "later")] == [1, 1, 1, 1]


def successes_of(id: str) -> int:
    return sum(entry["state"] == "success" for entry in (job.jobs().find_one({"_id": id}) or {})["history"])


def test_only_the_jobs_of_some_names_are_adopted(lab: Lab) -> None:
    mail = store(NAME, "pending", lab.clock(), id="mail")
    others = [
        store("report", "pending", lab.clock(), id="report"),
        store("import", "pending", lab.clock(), id="import"),
    ]
    store(5, "pending", lab.clock(), id="odd")
    assert job_queues.adopt([NAME], is_dry_run=True).jobs == {(NAME, "pending", JobState.PENDING): 1}
    assert job_queues.adopt([NAME], is_dry_run=False).adopted == 1
    assert lab.state(mail) == "pending"
    assert [one["_id"] for one in foreign_jobs()] == [*others, "odd"]
    assert job_queues.adopt([NAME, "report"], is_dry_run=False).adopted == 1


def test_failure_keeps_its_reason(lab: Lab) -> None:
    now = lab.clock()
    history = [{"date": now, "state": "failure", "serverId": SERVER, "result": {"code": 5}}]
    id = store(NAME, "failure", now, history=history)
    job_queues.adopt(is_dry_run=False)
    assert lab.jobs.get(id)["last_error"] == '{"code": 5}'


def test_jobs_made_due_by_release_0_1_wait_like_any_other(lab: Lab) -> None:
    id = store(NAME, "failure", lab.clock(), waiting=lab.clock(), first=1, claim={"token": "t"})
    job_queues.adopt(is_dry_run=False)
    assert not {"waiting", "first", "claim"} & {*lab.jobs.get(id)}


def test_adoption_in_batches_continues_after_an_interruption(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "ADOPTION_BATCH_SIZE", 3)
    for number in range(8):
        store(NAME, "pending", lab.clock(), id=f"id{number}", arguments=[number])
    adopt, batches = model.adopt, list[int]()

    def once(found: list[Any]) -> int:
        batches.append(len(found))
        if len(batches) == 2:
            raise ConnectionError
        return adopt(found)

    monkeypatch.setattr(model, "adopt", once)
    with pytest.raises(ConnectionError):
        job_queues.adopt(is_dry_run=False)
    assert len(foreign_jobs()) == 5

    assert job_queues.adopt(is_dry_run=False).adopted == 5
    assert (foreign_jobs(), job_queues.adopt(is_dry_run=False).adopted) == ([], 0)
    lab.serve(epoch=1)
    assert sorted(lab.ran) == [(number,) for number in range(8)]


def test_document_that_changes_meanwhile_is_left_to_the_next_adoption(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = store(NAME, "pending", lab.clock())
    adopt = model.adopt

    def after_the_old_application_ran_it(found: list[Any]) -> int:
        job.jobs().update_one({"_id": id}, {"$set": {"state": "success"}})
        return adopt(found)

    monkeypatch.setattr(model, "adopt", after_the_old_application_ran_it)
    assert job_queues.adopt(is_dry_run=False).adopted == 0
    monkeypatch.undo()
    assert job_queues.adopt(is_dry_run=False).adopted == 1
    assert lab.state(id) == "success"


def test_existing_jobs_are_not_changed(lab: Lab) -> None:
    executing = lab.run(NAME, 1)
    lab.executing(executing)
    waiting = lab.run(NAME, 2, unique=True)
    before = [lab.jobs.get(id) for id in (executing, waiting)]
    store(NAME, "executing", lab.clock())
    assert job_queues.adopt(is_dry_run=False).adopted == 1
    assert [lab.jobs.get(id) for id in (executing, waiting)] == before


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"_id": Int64(5)}, "_id"),
        ({"_id": "a/b"}, "_id"),
        ({"_id": ".."}, "_id"),
        ({"_id": ""}, "_id"),
        ({"name": "send mail"}, "name"),
        ({"name": None}, "name"),
        ({"state": "paused"}, "state"),
        ({"state": ["pending"]}, "state"),
        ({"due": "tomorrow"}, "due"),
        ({"arguments": "a"}, "arguments"),
    ],
)
def test_document_that_is_not_a_job_of_the_package_is_refused_with_the_reason(
    lab: Lab, fields: Document, reason: str
) -> None:
    job.jobs().insert_one({**foreign_job(NAME, "pending", lab.clock(), id=TEXT_ID), **fields})
    before = stored()
    result = job_queues.adopt(is_dry_run=False)
    assert (result.rejected, result.adopted) == (1, 0)
    assert [text.partition(":")[0] for text in result.rejection_reasons.values()] == [reason]
    assert stored() == before


@pytest.mark.parametrize(
    "fields",
    [
        {"history": "none"},
        {"history": [5, {"date": "x", "state": "pending"}, {"date": None}]},
        {"priority": "high"},
        {"priority": float("nan")},
        {"created": None},
        {"arguments": None},
        {"data": None, "serverId": 5},
    ],
)
def test_malformed_fields_do_not_prevent_adoption(lab: Lab, fields: Document) -> None:
    id = store(NAME, "pending", lab.clock(), **fields)
    assert job_queues.adopt(is_dry_run=False).adopted == 1
    lab.serve(epoch=1)
    assert lab.state(id) == "success"
    job_queues.as_json(lab.jobs.get(id))


# Text ids


def adopted(lab: Lab, state: str, *, id: str = TEXT_ID) -> str:
    store(NAME, state, lab.clock(), id=id)
    assert job_queues.adopt(is_dry_run=False).adopted == 1
    return id


@pytest.mark.parametrize("id", [TEXT_ID, "a" * 24, 'a b "c" é%2F?#'])
@pytest.mark.parametrize(
    ("act", "state"),
    [
        (lambda jobs, id: jobs.cancel(id), "canceled"),
        (lambda jobs, id: jobs.retry(id), "pending"),
        (lambda jobs, id: jobs.reschedule(id, delay=minutes(1)), "pending"),
    ],
)
def test_text_id_works_in_every_command(lab: Lab, act: Callable[[Any, str], Document], state: str, id: str) -> None:
    adopted(lab, "failure", id=id)
    assert act(lab.jobs, id)["state"] == state
    assert lab.state(id) == state


def test_lost_job_with_a_text_id_runs_again(lab: Lab) -> None:
    id = adopted(lab, "pending")
    lab.executing(id)
    job.jobs().update_one({"_id": id}, {"$set": {"claim.claimed_until": lab.clock()}})
    lab.serve(epoch=1)
    assert successes_of(id) == 1


@pytest.mark.parametrize("sort", ["created", "due", "updated", "priority", "attempts"])
@pytest.mark.parametrize("is_descending", [True, False])
@pytest.mark.parametrize("only", [{}, {"name": NAME}, {"state": "pending"}, {"search": "a"}])
def test_pages_hold_jobs_of_both_types_of_ids_once(
    lab: Lab, sort: str, is_descending: bool, only: dict[str, Any]
) -> None:
    for number in range(4):
        store(NAME, "pending", lab.clock(), id=f"a{number}")
    job_queues.adopt(is_dry_run=False)
    for number in range(3):
        lab.run(NAME, f"a{number}")

    found = listed(2, **only, sort=sort, is_descending=is_descending)
    assert len(found) == 7
    assert {*found} == {one["_id"] for one in stored()}
    assert listed(10, **only, sort=sort, is_descending=is_descending) == found


def test_text_id_can_be_removed(lab: Lab) -> None:
    assert lab.jobs.remove(adopted(lab, "failure"))["_id"] == TEXT_ID
    assert stored() == []


def test_clear_deletes_jobs_with_text_ids_too(lab: Lab) -> None:
    adopted(lab, "cancelled")
    assert lab.jobs.clear(["canceled"]) == 1


def test_indexes_can_be_created_with_jobs_of_both_kinds(lab: Lab) -> None:
    adopted(lab, "pending")
    store("other", "failure", lab.clock(), id="other")
    job.jobs().drop_indexes()
    assert schema.migrate([job_queues.system])
