"""Jobs that hold the GIL, hang, or whose process is stopped: they run once, and their time limit ends them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.core.settings import settings
from services.job_queues.dispatch import LOST_ERROR
from tests.e2e.job_processes import LONG, LONG_LEASE, job_beat, job_lab, job_worker, notes
from tests.eventually import eventually

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("clean")]

ENV = {"JOBS_GRACE_SECONDS": "1", **LONG}


@pytest.mark.smoke
@pytest.mark.parametrize("short_jobs_before", [0, 3])
def test_job_that_holds_the_gil_for_longer_than_its_lease_runs_once(short_jobs_before: int, tmp_path: Path) -> None:
    lab = job_lab()
    ids = [lab.run("holds_gil", 0) for _ in range(short_jobs_before)]
    ids += [lab.run("holds_gil", int(LONG_LEASE) + 4), lab.run("holds_gil", 0)]
    with job_worker(tmp_path, env=LONG) as process, job_beat(tmp_path, env=LONG):
        eventually(lambda: {lab.state(id) for id in ids} == {"success"})
        assert "claim of an executing job was lost" not in process.log
    assert [lab.jobs.get(id)["attempts"] for id in ids] == [1] * len(ids)
    assert len(notes("holds_gil")) == len(ids)


@pytest.mark.parametrize("how", [pytest.param("sleeping", marks=pytest.mark.smoke), "gil"])
def test_hanging_job_is_killed_after_its_time_limit_and_others_continue(how: str, tmp_path: Path) -> None:
    lab, mark, others_mark = job_lab(), tmp_path / "may-end", tmp_path / "others-may-end"
    with job_worker(tmp_path, env=ENV) as process, job_beat(tmp_path, env=ENV):
        other = lab.run("n0", 0, str(others_mark))
        eventually(lambda: lab.state(other) == "executing")
        id = lab.run("hangs", how, str(mark))
        eventually(lambda: lab.state(id) == "failure")
        found = lab.jobs.get(id)
        assert found["last_error"] == "The job exceeded its time limit of 1 s"
        assert "losses" not in found
        assert lab.state(other) == "executing"
        mark.touch()
        others_mark.touch()
        eventually(lambda: lab.state(id) == lab.state(other) == "success")
        assert lab.jobs.get(other)["attempts"] == 1
        assert process.log.count("exceeded its time limit of 1 s, and did not stop: its process is killed") == 1


def test_suspended_process_keeps_its_lease_until_the_time_limit(tmp_path: Path) -> None:
    lab, mark, env = job_lab(), tmp_path / "may-end", {**ENV, "JOBS_TIMEOUT_SECONDS": str(4 * LONG_LEASE)}
    with job_worker(tmp_path, env=env), job_beat(tmp_path, env=env):
        id = lab.run("fragile", str(mark))
        [first] = eventually(lambda: notes("fragile"))
        os.kill(first["pid"], signal.SIGSTOP)
        stopped_at = server_now()
        renewed = stopped_at + seconds(2.5 * LONG_LEASE)
        eventually(lambda: lab.jobs.get(id)["claim"]["claimed_until"] > renewed)
        eventually(lambda: lab.state(id) == "failure")
        assert lab.jobs.get(id)["last_error"] == f"The job exceeded its time limit of {4 * LONG_LEASE:g} s"
        mark.touch()
        eventually(lambda: lab.state(id) == "success")
    assert [entry.get("error") for entry in lab.jobs.get(id)["history"]].count(LOST_ERROR) == 0
    assert len(notes("fragile")) == 2


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Return a function that shortens the grace time of cancellations by this process."""

    def shorten() -> None:
        monkeypatch.setenv("JOBS_GRACE_SECONDS", "1")
        settings.cache_clear()

    yield shorten
    monkeypatch.undo()
    settings.cache_clear()


def test_canceled_job_stops_or_its_process_is_killed(tmp_path: Path, short_grace: Callable[[], None]) -> None:
    lab, mark = job_lab(), tmp_path / "never"
    with job_worker(tmp_path), job_beat(tmp_path):
        patient, fragile = lab.run("patient"), lab.run("fragile", str(mark))
        [first] = eventually(lambda: notes("patient"))
        eventually(lambda: notes("fragile"))
        lab.jobs.cancel(patient)
        eventually(lambda: lab.state(patient) == "canceled")
        os.kill(first["pid"], 0)  # its process lives
        short_grace()
        lab.jobs.cancel(fragile)
        eventually(lambda: lab.state(fragile) == "canceled")
