"""Repeating jobs that code declares: one job each, changed with the declaration, kept when it is removed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models import job
from queue_manager.core.clock import hours, minutes, seconds
from services.job_queues import InvalidJob
from services.job_queues.registry import Registry
from services.job_queues.repetition import declared_details, store_declared
from tests.job_lab import Lab
from tests.real_servers import Servers
from tests.rooms import T0, unchangeable

ID = "declared:sweep"


def declaring(name: str = "sweep", **repetition: Any) -> Lab:
    """Return what a process of a release that declares this repetition has."""
    lab = Lab(None, "mail")
    lab.register(name, **repetition)
    return lab


@pytest.fixture
def lab(clean: Servers) -> Lab:
    return declaring(every=minutes(1))


def stored() -> dict[str, Any]:
    [found] = job.jobs().find({"name": "sweep"})
    return found


def details(lab: Lab) -> list[str]:
    return list(declared_details(lab.registry.repetitions()))


def test_declared_job_is_stored_by_the_dispatch_and_repeats(lab: Lab) -> None:
    for expected in range(1, 4):
        for _ in range(2):
            lab.serve(epoch=1)
        assert (len(lab.ran), stored()["due"]) == (expected, T0 + expected * minutes(1))
        lab.hand.now += minutes(1)
    assert (stored()["_id"], stored()["state"]) == (ID, "pending")


def test_many_processes_and_restarts_store_one_declared_job(lab: Lab) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: store_declared(lab.registry.repetitions(), T0), range(16)))
    declaring(every=minutes(1)).dispatch(epoch=2)
    assert stored()["repetition"] == {"every_ms": 60_000, "since": T0}


@pytest.mark.parametrize(
    "repetition",
    [{"every_ms": 1000, "since": "2026-01-01"}, {"every_ms": 1000, "since": None}, {"since": [T0]}, [{"since": T0}]],
    ids=["text", "null", "list of dates", "list"],
)
def test_a_malformed_declared_job_does_not_stop_others(lab: Lab, repetition: Any) -> None:
    lab.serve(epoch=1)
    job.jobs().update_one({"_id": ID}, {"$set": {"repetition": repetition, "waiting": T0 + hours(1)}})
    id = lab.run("mail")
    lab.works["mail"] = lambda run: None
    lab.serve(epoch=1)
    assert (stored()["repetition"], lab.state(id)) == (repetition, "success")


@pytest.mark.parametrize("change", [{"$unset": {"name": ""}}, {"$set": {"name": ["sweep"]}}], ids=["none", "list"])
def test_a_declared_job_whose_name_is_malformed_does_not_stop_others(lab: Lab, change: dict[str, Any]) -> None:
    lab.serve(epoch=1)
    job.jobs().update_one({"_id": ID}, change)
    id = lab.run("mail")
    lab.serve(epoch=1)
    assert lab.state(id) == "success"
    assert details(lab) == []


def test_cron_line_gives_the_first_due_time(clean: Servers) -> None:
    lab = declaring(cron="0 3 * * *")
    lab.hand.now = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
    lab.dispatch(epoch=1)
    assert stored()["due"] == datetime(2026, 2, 1, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changed", "due"),
    [({"every": hours(1)}, T0 + hours(1)), ({"cron": "0 3 * * *"}, datetime(2026, 2, 1, 3, tzinfo=UTC))],
)
def test_changed_repetition_replaces_the_old_one(lab: Lab, changed: dict[str, Any], due: datetime) -> None:
    lab.serve(epoch=1)
    newer = declaring(**changed)
    newer.hand.now += seconds(30)
    newer.dispatch(epoch=1)
    assert stored()["due"] == stored()["waiting"] == due
    newer.hand.now = stored()["due"]
    newer.serve(epoch=1)
    assert len(newer.ran) == 1


@pytest.mark.parametrize("by", ["time", "operator"])
def test_changed_repetition_does_not_postpone_a_run_that_is_due(lab: Lab, by: str) -> None:
    lab.serve(epoch=1)
    newer = declaring(every=hours(1))
    if by == "time":
        newer.hand.now += minutes(1)
    else:
        lab.jobs.retry(ID)
    newer.serve(epoch=1)
    assert (len(newer.ran), stored()["repetition"]["every_ms"], stored()["due"]) == (1, 3_600_000, T0 + hours(1))


def test_repetition_that_is_changed_before_its_first_due_time_does_not_wait_for_it(clean: Servers) -> None:
    declaring(cron="0 3 1 1 *").dispatch(epoch=1)
    newer = declaring(every=minutes(1))
    for expected in range(3):
        newer.serve(epoch=1)
        assert (len(newer.ran), stored()["due"] - newer.clock() <= minutes(1)) == (expected, True)
        newer.hand.now = stored()["due"]


@pytest.mark.parametrize("state", ["pending", "executing"])
def test_repetition_that_release_0_2_changed_does_not_wait_for_the_first_due_time(clean: Servers, state: str) -> None:
    lab = declaring(every=hours(1))
    lab.serve(epoch=1)
    lab.hand.now += hours(1)
    kept = {"$set": {"repetition.since": T0 + timedelta(days=30)}}
    if state == "pending":
        job.jobs().update_one({"_id": ID}, kept)
    else:
        lab.works["sweep"] = lambda **_: job.jobs().update_one({"_id": ID}, kept)
    for expected in range(2, 5):
        lab.serve(epoch=1)
        lab.dispatch(epoch=1)
        assert (len(lab.ran), stored()["due"]) == (expected, T0 + expected * hours(1))
        lab.hand.now += hours(1)


def test_a_declared_job_that_mongodb_refuses_to_change_does_not_stop_others(lab: Lab) -> None:
    lab.dispatch(epoch=1)
    lab.run("mail")
    with unchangeable(job.JOBS_COLLECTION, ID):
        assert "mail" in declaring(every=hours(1)).names_dispatched(epoch=1)


def test_repetition_of_an_executing_job_is_changed_after_its_run(lab: Lab) -> None:
    newer = declaring(every=hours(1))

    def dispatch_of_the_newer_release(**_: Any) -> None:
        newer.dispatch(epoch=1)
        assert stored()["repetition"]["every_ms"] == 60_000

    lab.works["sweep"] = dispatch_of_the_newer_release
    lab.serve(epoch=1)
    newer.dispatch(epoch=1)
    assert (stored()["repetition"]["every_ms"], stored()["due"]) == (3_600_000, T0 + hours(1))


def test_job_that_was_read_before_the_change_is_not_started(lab: Lab) -> None:
    lab.dispatch(epoch=1)
    read = stored()
    declaring(every=hours(1)).dispatch(epoch=1)
    job.jobs().update_one({"_id": ID}, {"$set": {"waiting": T0}})
    with pytest.raises(AssertionError):
        lab.start(read)
    lab.start(stored())


def test_failed_and_canceled_jobs_keep_their_state(lab: Lab) -> None:
    lab.works["sweep"] = lambda **_: 1 / 0
    lab.serve(epoch=1)
    failed = stored()
    declaring(every=hours(1)).dispatch(epoch=1)
    assert (stored()["state"], stored()["waiting"]) == ("failure", failed["waiting"])
    lab.jobs.cancel(ID)
    lab.retention = timedelta(days=7)
    lab.hand.now += timedelta(days=30)
    for _ in range(2):
        lab.serve(epoch=1)
    assert (stored()["state"], len(lab.ran), "waiting" in stored()) == ("canceled", 1, False)
    lab.jobs.retry(ID)
    del lab.works["sweep"]
    lab.serve(epoch=1)
    assert (stored()["state"], len(lab.ran)) == ("pending", 2)


def test_clear_keeps_declared_jobs(lab: Lab) -> None:
    lab.dispatch(epoch=1)
    lab.jobs.cancel(ID)
    lab.jobs.cancel(lab.run("mail"))
    assert lab.jobs.count_up_to(9, ["canceled"]) == lab.jobs.count_up_to(9, ["canceled"], "mail") == 1
    assert lab.jobs.clear(["canceled"]) == 1
    lab.serve(epoch=1)
    assert (stored()["state"], lab.ran) == ("canceled", [])


def test_removed_declaration_is_named_and_its_job_is_kept(lab: Lab) -> None:
    lab.dispatch(epoch=1)
    without = Lab(None, "mail", "sweep")
    without.dispatch(epoch=1)
    assert (stored()["_id"], details(lab)) == (ID, [])
    assert details(without) == [
        f"sweep: repeats, but is no longer declared; `queue-manager jobs remove {ID}` deletes the job"
    ]
    lab.jobs.remove(ID)
    assert details(without) == []


@pytest.mark.parametrize("options", [{"every": hours(1)}, {"delay": hours(1)}], ids=["singular", "not singular"])
def test_existing_job_without_arguments_blocks_a_declaration(lab: Lab, options: dict[str, Any]) -> None:
    id = lab.run("sweep", **options)
    lab.dispatch(epoch=1)
    assert str(stored()["_id"]) == id
    assert details(lab) == [
        "sweep: its declared repetition is not stored; the next dispatch stores it unless another job without "
        "arguments is pending, failed or executing, or the document declared:sweep is malformed; "
        "see `queue-manager jobs list --name sweep`"
    ]
    lab.jobs.remove(id)
    lab.dispatch(epoch=1)
    assert (stored()["_id"], details(lab)) == (ID, [])
    assert lab.jobs.run("sweep", singular=True) is None


@pytest.mark.parametrize("repetition", [{"every": 60}, {"cron": "soon"}, {"every": minutes(1), "cron": "* * * * *"}])
def test_malformed_declaration_is_refused(repetition: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob):
        Registry().register("mail", print, **repetition)


def test_function_that_needs_arguments_cannot_be_declared() -> None:
    with pytest.raises(InvalidJob, match="missing a required argument: 'to'"):
        Registry().register("mail", lambda to: None, every=minutes(1))
