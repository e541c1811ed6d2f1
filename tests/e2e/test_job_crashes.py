"""Workers and beats of job queues killed with SIGKILL: executing jobs are retried, and succeed once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from models import job, job_counts, job_queue
from models.database import server_now
from queue_manager.core.clock import seconds
from tests.e2e.job_names import CONSECUTIVE
from tests.e2e.job_processes import (
    LONG,
    LONG_LEASE,
    PERIOD,
    count,
    job_beat,
    job_lab,
    job_worker,
    notes,
    overlaps,
    success_counts,
)
from tests.eventually import eventually
from tests.job_lab import count_jobs
from tests.pace import paced, promptly
from tests.real_servers import Servers

pytestmark = pytest.mark.crash

TAKEOVER, LOOP = 6.0, 1.0  # seconds: the lock of the beat that leads, and a loop of the one that stands by
FOUND_DEAD = 2.0  # seconds after which a worker has released the claim of a child of its own that died
SLOW = 5.0  # seconds for everything else on an idle machine, starting a worker included


@pytest.mark.smoke
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("victim", ["worker", "child"])
def test_job_is_retried_when_its_worker_is_killed(victim: str, tmp_path: Path, figure: Callable[[str], None]) -> None:
    lab, mark = job_lab(), tmp_path / "may-end"
    with job_worker(tmp_path, env=LONG) as process, job_beat(tmp_path, env=LONG):
        id = lab.run("fragile", str(mark))
        behind = lab.run("fragile", str(mark))
        [first] = eventually(lambda: notes("fragile"))
        assert lab.state(id) == "executing"
        with paced() as pace:
            if victim == "worker":
                process.kill()
            else:
                os.kill(first["pid"], signal.SIGKILL)
            killed_at = server_now()
            mark.touch()
            if victim == "worker":
                process.start()

            eventually(lambda: lab.state(id) == "success")
        again = notes("fragile", job=id)[-1]
        figure(f"jobs: back {(again['began'] - killed_at).total_seconds():.1f} s after its {victim} was killed")
        eventually(lambda: lab.state(behind) == "success")
    found = lab.jobs.get(id)
    assert found["attempts"] == again["attempt"] == 2
    assert [entry["state"] for entry in found["history"]] == ["pending", "failure", "success"]
    assert "lost" in found["last_error"]
    held_for = LONG_LEASE if victim == "worker" else FOUND_DEAD
    assert again["began"] <= killed_at + seconds(held_for + PERIOD + pace.allowed(SLOW))


@pytest.mark.usefixtures("clean")
def test_job_whose_process_died_is_due_again_long_before_its_lease_ends(tmp_path: Path) -> None:
    lab, mark = job_lab(), tmp_path / "may-end"
    long = {"JOBS_LEASE_SECONDS": "600", "QM_LEASE_SECONDS": "600"}
    with job_worker(tmp_path, env=long), job_beat(tmp_path, env=long):
        id = lab.run("fragile", str(mark))
        [first] = eventually(lambda: notes("fragile"))
        mark.touch()
        os.kill(first["pid"], signal.SIGKILL)
        eventually(lambda: lab.state(id) == "success")
    assert lab.jobs.get(id)["attempts"] == 2


@pytest.mark.usefixtures("clean")
def test_another_beat_takes_over_and_failed_jobs_are_retried_immediately(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    lab = job_lab()
    with job_worker(tmp_path), job_beat(tmp_path, 0) as leader:
        eventually(lambda: job_queue.leader_epoch() == 1)
        with job_beat(tmp_path, 1) as standby:
            eventually(lambda: "standing by" in standby.log)
            id = lab.run("mixed", "mended")
            eventually(lambda: lab.state(id) == "failure")
            later = server_now() + seconds(600)  # its next attempt would come much later than the takeover
            job.jobs().update_one({"name": "mixed"}, {"$set": {"waiting": later, "due": later}})
            lab.run("mixed", "good")
            eventually(lambda: count("success", "mixed") == 1)

            leader.kill()
            killed_at = server_now()
            with paced() as pace:
                eventually(lambda: lab.state(id) == "success")
            took = (notes("mixed", job=id)[-1]["began"] - killed_at).total_seconds()
            figure(f"jobs: a failed one was tried {took:.1f} s after the leader was killed")
            assert took <= TAKEOVER + LOOP + PERIOD + pace.allowed(SLOW)
            lab.run("mixed", "later")
            with promptly(PERIOD + SLOW):
                eventually(lambda: count("success", "mixed") == 3)
    assert job_queue.leader_epoch() == 2
    assert len(notes("mixed", job=id)) == 2


@pytest.mark.stress
def test_each_job_succeeds_once_while_workers_and_beats_are_killed(
    clean: Servers, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    chance, lab = random.Random(20260131), job_lab()
    processes = [job_worker(tmp_path, number) for number in range(2)]
    processes += [job_beat(tmp_path, number) for number in range(2)]
    for process in processes:
        process.start()
    began, kills, total = time.monotonic(), 0, 0
    while time.monotonic() - began < 60:
        for name in CONSECUTIVE:
            for _ in range(10):
                lab.run(name, chance.choice([0, 0, 0, 0.05]), delay=seconds(chance.random() * 5))
                total += 1
        victim = chance.choice(processes)
        victim.kill()
        kills += 1
        victim.start(ready=False)
        time.sleep(3)  # the storm's rhythm, not a wait for anything
    eventually(lambda: count("success", *CONSECUTIVE) == total, within=150, every=1)
    for process in processes:
        process.kill()
    figure(f"jobs: storm of {total} jobs and {kills} kills: each succeeded once")
    assert success_counts(*CONSECUTIVE) == {1}
    assert job_counts.by_name() == count_jobs()
    assert overlaps(*CONSECUTIVE) == []
