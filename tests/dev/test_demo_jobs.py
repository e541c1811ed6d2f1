"""The demo's jobs behave as their names say, affect no other jobs, and stay few."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest
from bson import ObjectId

from dev import demo_jobs, demo_rooms, environment, summary
from dev.demo_jobs import IMPORT, INVOICE, NAMES, PARCEL, REPORT
from models import job as model
from models import job_attempt, job_counts
from models.database import Document, server_now
from models.job import JobState
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.errors import ContinueLater, NotYetDue
from queue_manager.core.settings import Settings
from services.job_queues import Jobs
from services.job_queues import jobs as service
from tasks.job_queues import run_jobs
from tests.dev.demo_process import running
from tests.eventually import eventually
from tests.real_servers import Servers

DEMO = [sys.executable, "-m", "dev.demo", "--no-messages"]
SERVERS: dict[str, Any] = {"mongo_url": "m", "redis_url": "r", "flower_port": 1, "web_port": 2}


@pytest.fixture
def jobs(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    for name in ("MIN_DURATION", "MAX_DURATION"):
        monkeypatch.setattr(demo_jobs, name, 0)
    return service


def stored(name: str, state: JobState, count: int, *, created: datetime | None = None) -> list[ObjectId]:
    now = server_now()
    about: Document = {"name": name, "arguments": [], "priority": 0, "due": now, "updated": now, "attempts": 1}
    about |= {"state": state, "created": created or now, "key": "k", "history": []}
    about |= {"waiting": now} if state in model.WAITING_STATES else {}
    return list(model.jobs().insert_many([dict(about) for _ in range(count)]).inserted_ids)


def states(name: str) -> list[str]:
    return [job["state"] for job in service.list(name=name)]


def run_once_more(name: str) -> Document:
    """Run the one job of `name`, and make it due again when it fails."""
    model.make_failed_due(server_now())
    with suppress(NotYetDue, ContinueLater):
        run_jobs(name, None, token=str(ObjectId()))
    (job,) = service.list(name=name)
    return job


class TestJobs:
    def test_every_job_name_is_recognizable_as_demo(self, jobs: Jobs) -> None:
        demo_jobs.start(jobs)
        assert {job["name"] for job in jobs.list()} == set(NAMES)
        assert all(name.startswith("demo.") for name in NAMES)

    def test_a_parcel_fails_twice_and_then_succeeds(self, jobs: Jobs) -> None:
        jobs.run(PARCEL, 1)
        assert [(job := run_once_more(PARCEL))["state"] for _ in range(3)] == ["failure", "failure", "success"]
        assert job["attempts"] == 3

    def test_a_report_shows_its_progress(self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
        shown: list[float] = []

        def show(_: Document, progress: Document, **__: object) -> Document:
            shown.append(progress["percent"])
            return {"claim": {}}

        monkeypatch.setattr(job_attempt, "set_progress", show)
        jobs.run(REPORT, 2026)
        assert run_once_more(REPORT)["state"] == "success"
        assert shown[0] == 0

    def test_an_import_fails_until_it_is_canceled(self, jobs: Jobs) -> None:
        jobs.run(IMPORT, "prices.xls")
        failed = run_once_more(IMPORT)
        assert failed["last_error"] == "FileUnreadable: prices.xls is not a spreadsheet"
        demo_jobs.cancel_hopeless(jobs, failed["created"] + demo_jobs.CANCEL_AFTER)
        assert states(IMPORT) == ["failure"]
        demo_jobs.cancel_hopeless(jobs, failed["created"] + demo_jobs.CANCEL_AFTER + seconds(1))
        assert states(IMPORT) == ["canceled"]

    def test_an_executing_import_is_canceled_later(self, jobs: Jobs) -> None:
        stored(IMPORT, JobState.EXECUTING, 1, created=server_now() - minutes(5))
        demo_jobs.cancel_hopeless(jobs, server_now())
        assert states(IMPORT) == ["executing"]


class TestBounds:
    def test_demo_stores_no_jobs_while_too_many_wait(self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(demo_jobs, "PARCEL_CHANCE", 1)
        for name in (INVOICE, PARCEL):
            stored(name, JobState.PENDING, demo_jobs.MAX_WAITING)
        demo_jobs.go_on(jobs, server_now())
        assert [len(states(name)) for name in (INVOICE, PARCEL)] == [demo_jobs.MAX_WAITING] * 2

    def test_only_the_oldest_finished_jobs_of_the_demo_are_deleted(self, jobs: Jobs) -> None:
        somebodys = stored("send_invoice", JobState.SUCCESS, demo_jobs.RETENTION_COUNT + 2)
        waiting = stored(INVOICE, JobState.PENDING, demo_jobs.RETENTION_COUNT + 2)
        finished = stored(INVOICE, JobState.SUCCESS, demo_jobs.RETENTION_COUNT + 2)
        canceled = stored(IMPORT, JobState.CANCELED, demo_jobs.RETENTION_COUNT + 2)
        demo_jobs.clear_up(jobs)
        left = {job["_id"] for job in model.jobs().find({}, {"_id": 1})}
        assert left == {*somebodys, *waiting, *finished[2:], *canceled[2:]}

    def test_the_counts_of_the_status_change_with_the_deleted_jobs(self, jobs: Jobs) -> None:
        stored(INVOICE, JobState.SUCCESS, demo_jobs.RETENTION_COUNT + 3)
        job_counts.recount(server_now())
        demo_jobs.clear_up(jobs)
        (queue,) = [one for one in jobs.status()["queues"] if one["name"] == INVOICE]
        in_mongodb = model.jobs().count_documents({"name": INVOICE, "state": JobState.SUCCESS})
        assert queue["states"]["success"] == in_mongodb == demo_jobs.RETENTION_COUNT


class TestProcess:
    def test_demo_stores_jobs_by_itself(self, clean: Servers) -> None:
        imports = json.dumps([demo_jobs.MODULE])
        with running(DEMO, {"QM_CONVERSATIONS": "false", "QM_JOBS": "true", "JOBS_IMPORTS": imports}) as child:
            eventually(lambda: {job["name"] for job in service.list()} == set(NAMES))
        assert child.wait() == 0

    @pytest.mark.slow
    def test_demo_stores_no_jobs_if_they_are_not_imported(self, clean: Servers) -> None:
        rooms = model.jobs().database["support_rooms"]
        with running(DEMO, {"QM_JOBS": "true", "JOBS_IMPORTS": '["json"]'}):
            # Each part has had its turn.
            eventually(lambda: rooms.count_documents({}) > demo_rooms.SNOOZED_AT_START)
        assert model.jobs().count_documents({}) == 0


class TestEnvironment:
    def test_jobs_of_the_demo_are_imported(self) -> None:
        children = environment.for_children({}, **SERVERS)
        assert (children["QM_JOBS"], json.loads(children["JOBS_IMPORTS"])) == ("true", [demo_jobs.MODULE])

    def test_jobs_of_the_user_take_precedence(self) -> None:
        assert environment.for_children({"JOBS_IMPORTS": '["billing"]'}, **SERVERS)["JOBS_IMPORTS"] == '["billing"]'


class TestSummary:
    def test_summary_counts_finished_jobs(self, clean: Servers) -> None:
        stored(INVOICE, JobState.SUCCESS, 3)
        stored(PARCEL, JobState.SUCCESS, 1)
        stored(IMPORT, JobState.FAILURE, 2)
        now = server_now()
        assert summary.describe_jobs(now - minutes(5), now) == "4 jobs done, 2 jobs failed"
        assert summary.describe_jobs(now + seconds(5), now) == ""

    def test_summary_counts_jobs_only_if_they_run(self) -> None:
        for is_only, has_line in ((False, True), (True, False)):
            environment: dict[str, Any] = {"APP_ENV": "test"}
            chosen = Settings(qm_jobs=True, jobs_production_only=is_only, **environment)
            assert (summary.describe_jobs in summary.systems(chosen)) is has_line
