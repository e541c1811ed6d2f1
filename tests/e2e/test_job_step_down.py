"""The primary of a replica set steps down, and is killed, while jobs run: none is lost, none is done twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev.servers import Valkey
from tests.e2e.job_names import CONSECUTIVE
from tests.e2e.job_processes import count, job_beat, job_lab, job_worker, notes, overlaps, success_counts
from tests.e2e.replica_set import ReplicaSet, own_replica_set
from tests.eventually import eventually

pytestmark = pytest.mark.crash

NAMES, EACH = CONSECUTIVE[:4], 150
LEASE = 15  # seconds: longer than an election


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplicaSet]:
    with own_replica_set(tmp_path, monkeypatch) as running:
        yield running


@pytest.mark.parametrize("how", ["step down", pytest.param("kill", marks=pytest.mark.stress)])
def test_jobs_survive_the_loss_of_the_primary(
    how: str, members: ReplicaSet, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    lab, total = job_lab(), len(NAMES) * EACH
    with Valkey(tmp_path / "valkey") as valkey:
        env = {"REDIS_URL": valkey.url, "MONGO_DB_URL": members.url, "JOBS_LEASE_SECONDS": str(LEASE)}
        with job_worker(tmp_path, env=env) as worker, job_beat(tmp_path, env=env):
            for _ in range(EACH):
                for name in NAMES:
                    lab.run(name, 0.02)
            done = eventually(lambda: (now := count("success")) > total / 10 and now)
            if how == "kill":
                (primary := eventually(members.primary)).kill()
                eventually(members.primary)
                primary.start()
            else:
                members.step_down()
            assert done < total  # it happened in the middle
            eventually(lambda: count("success") == total, within=90)
            assert worker.is_alive()
    again = len(notes(*NAMES)) - total
    figure(f"jobs: primary lost ({how}) after {done} of {total}: each succeeded once, {again} ran again")
    assert success_counts(*NAMES) == {1}
    assert overlaps(*NAMES) == []
