"""What real workers show of their processes: the item, the batch and the job that each executes; and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.operations.workers import OneWorker, WorkerTask, read_workers
from queue_manager.telemetry import worker_heartbeats
from tasks import app
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.commands import queue_manager
from tests.e2e.job_processes import ENV, job_lab
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room

pytestmark = pytest.mark.processes

NAME = "one@here"


@contextmanager
def working(directory: Path, room: ObjectId, *arguments: str, env: Mapping[str, str] = ENV) -> Iterator[CeleryProcess]:
    """A worker that hangs while it opens this room."""
    poisoned = {**env, "QM_CONVERSATIONS": "true", "POISON_ROOM": str(room), "POISON_DOES": "hang"}
    log = directory / "worker.log"
    with worker(log, "--hostname", NAME, *arguments, app="tests.e2e.poison_app", env=poisoned) as process:
        yield process


def due_room() -> ObjectId:
    return make_room(server_now() - seconds(10))


def wake_rooms() -> None:
    app.send_task("tasks.support_snooze.scan_expired_snoozes", queue="scans")


def seen() -> OneWorker:
    (found,) = read_workers().workers
    return found


def running() -> dict[str | None, WorkerTask]:
    """Return what runs, by the name of its system."""
    return {task.system: task for process in seen().processes for task in process.running}


def run(directory: Path, *arguments: str) -> str:
    result = queue_manager("workers", *arguments, cwd=directory, **ENV)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_each_process_shows_the_item_or_job_it_executes(clean: Servers, tmp_path: Path) -> None:
    room, mark = due_room(), tmp_path / "mark"
    job = job_lab().run("long", 0, str(mark))
    began = server_now()
    with working(tmp_path, room):
        wake_rooms()
        app.send_task("tasks.job_queues.run_queue", args=["long", None], queue="jobs")
        eventually(lambda: running().keys() == {"support-snooze", "job-queues"})
        tasks, shown = running(), seen()
        assert (shown.pool, shown.size, shown.busy) == ("prefork", 2, 2)
        assert all(process.memory_bytes for process in shown.processes)
        of_room, of_job = tasks["support-snooze"], tasks["job-queues"]
        assert (of_room.item, of_room.page) == (str(room), f"/rooms/{room}")
        assert (of_job.job_name, of_job.item, of_job.page) == ("long", job, f"/jobs/{job}")
        assert began - seconds(1) <= of_room.since <= server_now() + seconds(1)
        lines = run(tmp_path)
        assert f"long {job} tasks.job_queues.run_queue  for " in lines
        assert f"{room} tasks.support_snooze.unsnooze_room  for " in lines
        assert f"version {worker_heartbeats.OWN_RELEASE}" in lines

        mark.touch()
        eventually(lambda: "job-queues" not in running())
        eventually(lambda: seen().done_per_minute)
        of_page: dict[str, Any] = json.loads(run(tmp_path, "--json"))
        assert of_page["workers"][0]["busy"] == 1
        assert of_page["queues_without_worker"] == []


def test_a_batch_is_shown_as_one_activity(clean: Servers, tmp_path: Path) -> None:
    room = due_room()
    for _ in range(20):
        due_room()
    patient = {**ENV, "QM_LEASE_SECONDS": "120"}  # after which the process of a batch is replaced
    with working(tmp_path, room, "--prefetch-multiplier", "100", env=patient):
        wake_rooms()
        task = eventually(lambda: running().get("support-snooze"))
        assert (task.tasks, task.item, task.page) == (21, None, "/rooms")
        assert "21 items tasks.support_snooze.unsnooze_room  for " in run(tmp_path)


def test_a_pool_of_threads_shows_its_tasks_in_one_process(clean: Servers, tmp_path: Path) -> None:
    room = due_room()
    with working(tmp_path, room, "--pool", "threads") as process:
        wake_rooms()
        task = eventually(lambda: running().get("support-snooze"))
        assert task.item == str(room)
        shown = seen()
        assert (shown.pool, shown.size, [one.pid for one in shown.processes]) == ("threads", 2, [process.pid])


def test_workers_command_names_queues_without_a_worker(clean: Servers, tmp_path: Path) -> None:
    said = run(tmp_path)
    assert said.startswith("No workers are online.\n")
    assert "No worker consumes the queue jobs (Jobs).\n" in said
    with worker(tmp_path / "worker.log", "--queues", "scans,jobs", env=ENV):
        eventually(lambda: read_workers().count == 1)
        said = run(tmp_path)
        assert "No worker consumes" not in said
        assert "\n  queues: jobs, scans\n" in said
