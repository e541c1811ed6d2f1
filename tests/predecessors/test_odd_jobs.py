"""No document in `jobs_data` makes a list, a page, a command or a worker fail, even if it looks like a job."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import Int64, ObjectId
from pymongo.errors import DuplicateKeyError

from models import job, job_counts
from models.database import Document, server_now
from models.job import JobState
from queue_manager.client import Client
from queue_manager.core.clock import seconds
from queue_manager.explanation import DispatchState
from queue_manager.operations.job_schemas import job_as_json
from services import job_queues
from services.job_queues import JobRun, as_json
from services.job_queues.dispatch import system
from services.job_queues.explanation import explain
from tests.client.clients import url_of
from tests.e2e.commands import queue_manager
from tests.job_lab import Lab, listed
from tests.real_servers import Servers
from tests.web.web_process import forked_web

STATES = ("pending", "failure", "executing", "success")
MISSING = object()
ODD_VALUES: list[Any] = [
    *(None, "", "text", 5, -1, 2.5, float("nan"), Int64(2**62), True, ObjectId(), datetime(1, 1, 1, tzinfo=UTC)),
    *([], ["mail"], [None, {"state": 5}], {}, {"a": 1}, MISSING),
]


@pytest.fixture
def lab(clean: Servers) -> Lab:
    return Lab(server_now)


def stored_job(lab: Lab, state: str) -> Document:
    """Return a due job in a state, as it was stored; it is not there any more."""
    id = lab.run("mail", "a")
    if state == "executing":
        lab.executing(id)
    if state == "success":
        lab.run_through("mail")
    if state == "failure":
        lab.works = {"mail": lambda *_, run: 1 / 0}
        lab.run_through("mail")
        lab.works = {}
        job.jobs().update_one({}, {"$set": {"waiting": server_now() - seconds(1)}})
    stored = job.jobs().find_one_and_delete({"state": state})
    assert stored is not None
    return stored


def store_odd_jobs(lab: Lab, state: str) -> list[str]:
    """Store a job for each field and each odd value of it; return their ids."""
    base, ids = stored_job(lab, state), []
    for field in [one for one in base if one != "_id"]:
        for number, value in enumerate(ODD_VALUES):
            # One job of a name is executing at most.
            own = {"name": f"name-{field}-{number}"} if state == "executing" and field != "name" else {}
            odd = {**base, **own, "_id": f"{field}-{number}", field: value}
            if value is MISSING:
                del odd[field]
            if (state, field, value) == ("executing", "name", ["mail"]):
                continue  # the unique index of executing jobs has an entry for each element
            with suppress(DuplicateKeyError):
                job.jobs().insert_one(odd)
                ids.append(odd["_id"])
    return ids


@pytest.mark.parametrize("state", STATES)
def test_no_field_of_one_of_our_jobs_is_hidden(lab: Lab, state: str) -> None:
    stored = stored_job(lab, state)
    assert job_as_json(stored) == as_json(stored)


def test_no_field_of_an_executing_repeating_job_is_hidden(lab: Lab) -> None:
    shown: list[tuple[Any, Any]] = []

    def work(*_: Any, run: JobRun) -> None:
        run.progress(50, "half")
        stored = lab.jobs.get(run.id)
        shown.append((job_as_json(stored), as_json(stored)))

    lab.works = {"mail": work}
    lab.run("mail", {"id": ObjectId()}, every=seconds(60))
    lab.run_through("mail", timeout=seconds(60))
    ((fields, expected),) = shown
    assert fields == expected
    assert {"claim", "progress", "repetition"} <= {*fields}


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
def test_jobs_with_malformed_fields_stop_no_queue_and_no_list(lab: Lab, state: str) -> None:
    ids = store_odd_jobs(lab, state)
    dispatch = DispatchState(
        system=system,
        now=server_now(),
        is_on=True,
        idle=None,
        has_leader=True,
        next_scan_at=None,
        workers=None,
    )
    for _ in range(2):  # as they are, and after they were executed
        good = lab.run("mail", "good")
        lab.jobs.status()
        job_queues.stats()
        job_counts.recount(server_now())
        for id in ids:
            as_json(lab.jobs.get(id))
            explain(id, dispatch)
        for sort in ("created", "due", "updated", "priority", "attempts"):
            for is_descending in (True, False):
                assert len(listed(40, sort=sort, is_descending=is_descending)) <= len(ids) + 2
        for _ in range(3):
            lab.serve()
        assert lab.state(good) == "success"


@pytest.mark.processes
@pytest.mark.parametrize("state", STATES)
def test_jobs_with_malformed_fields_are_shown(lab: Lab, state: str, tmp_path: Path) -> None:
    ids = store_odd_jobs(lab, state)
    lists = ["/api/jobs/status", "/api/overview", "/metrics", "/jobs", *(f"/api/jobs?state={one}" for one in JobState)]
    lists += [f"/api/jobs?limit=200&sort={sort}" for sort in ("created", "due", "updated", "priority", "attempts")]
    lists += ["/api/failures", "/failures"]
    with forked_web(tmp_path, QM_JOBS="true") as process:
        for path in [*lists, *(f"/api/search?id={id}" for id in ids)]:
            assert process.get(path).status == 200, path
        for id in ids:
            assert process.get(f"/api/jobs/{id}").status == (200 if job.is_job(lab.jobs.get(id)) else 404), id
        with Client(url_of(process.port)) as client:
            listed = {one.id for one in client.jobs.list()}
            client.jobs.status()
        assert {id for id in ids if job.is_job(lab.jobs.get(id))} <= listed
        assert "Traceback" not in process.log
    for command in (["jobs", "list", "--limit", "200"], ["jobs", "status"], ["jobs", "show", ids[0]], ["health"]):
        result = queue_manager(*command, cwd=tmp_path, QM_JOBS="true")
        assert result.stderr == "", command
