"""Workers of job queues that are terminated: they start no further job, and interrupted jobs use up no attempt."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.job_processes import LONG, count, job_beat, job_lab, job_worker, notes
from tests.eventually import eventually

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("clean")]

LIMIT = 2.0  # seconds that a warm shutdown waits for running tasks
ENDS_WITHIN = 30.0  # seconds, on a busy machine; a job that nobody interrupts takes longer


@pytest.mark.smoke
def test_a_job_that_outlasts_the_shutdown_is_requeued_and_no_other_is_started(tmp_path: Path) -> None:
    lab, mark = job_lab(), tmp_path / "may-end"
    with job_beat(tmp_path, env=LONG):
        with job_worker(tmp_path, concurrency=1, env={**LONG, "QM_SHUTDOWN_SECONDS": str(LIMIT)}) as worker:
            ids = [lab.run("fragile", str(mark)) for _ in range(2)]
            eventually(lambda: notes("fragile"))

            worker.signal(signal.SIGTERM)

            eventually(lambda: not worker.is_alive(), within=ENDS_WITHIN)
        assert [note["job"] for note in notes("fragile")] == ids[:1]
        interrupted = lab.jobs.get(ids[0])
        assert (interrupted["state"], interrupted.get("last_error")) == ("pending", None)
        mark.touch()
        with job_worker(tmp_path, 1, env=LONG):
            eventually(lambda: count("success", "fragile") == 2)
    assert [(note["job"], note["attempt"]) for note in notes("fragile")] == [(ids[0], 1), (ids[0], 1), (ids[1], 1)]


def test_a_run_ends_with_the_job_it_executes_when_the_worker_shuts_down(tmp_path: Path) -> None:
    lab = job_lab()
    with job_worker(tmp_path, concurrency=1, env=LONG) as worker, job_beat(tmp_path, env=LONG):
        lab.jobs.run_many("n0", [[0.3] for _ in range(60)])
        eventually(lambda: notes("n0"))

        worker.signal(signal.SIGTERM)

        eventually(lambda: not worker.is_alive(), within=ENDS_WITHIN)
        done = len(notes("n0"))
        assert done < 40  # 12 s; the default of the shutdown is 20 s
        assert (count("success", "n0"), count("pending", "n0")) == (done, 60 - done)


def test_a_terminated_process_requeues_its_job(tmp_path: Path) -> None:
    lab, mark = job_lab(), tmp_path / "may-end"
    with job_worker(tmp_path, concurrency=1, env=LONG), job_beat(tmp_path, env=LONG):
        id = lab.run("fragile", str(mark))
        [first] = eventually(lambda: notes("fragile"))

        os.kill(first["pid"], signal.SIGTERM)

        eventually(lambda: len(notes("fragile")) == 2)
        mark.touch()
        eventually(lambda: lab.state(id) == "success")
    found = lab.jobs.get(id)
    assert [entry["state"] for entry in found["history"]] == ["pending", "pending", "success"]
    assert "last_error" not in found
    assert notes("fragile")[1]["pid"] != first["pid"]
