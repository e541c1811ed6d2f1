"""The memory of a long-running worker does not grow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from statistics import mean

import pytest

from benchmarks.rooms.contenders import ours
from benchmarks.rooms.listener import Listener
from benchmarks.rooms.processes import resident, running
from benchmarks.snooze_scan import documents
from models import support_room
from models.database import server_now
from tests.real_servers import Servers

pytestmark = pytest.mark.processes

ITEMS, BATCH_SIZE, LOOK_EVERY = 500_000, 10_000, 50_000
CHANNEL = "memory"


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_memory_of_a_worker_is_flat_over_half_a_million_items(
    clean: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]
) -> None:
    monkeypatch.chdir(tmp_path)  # where the workers write their logs
    sizes: dict[int, list[float]] = {}
    way = ours()
    with running(way.workers, way.sender, **way.env, SOCKETIO_CHANNEL=CHANNEL) as started:
        for done in range(BATCH_SIZE, ITEMS + 1, BATCH_SIZE):
            support_room.rooms().delete_many({})
            support_room.rooms().insert_many(islice(documents(BATCH_SIZE, BATCH_SIZE, server_now()), BATCH_SIZE))
            with closing(Listener(clean.valkey.url, CHANNEL)) as listener:
                started.sender.ask("scan")
                assert listener.wait(BATCH_SIZE, timeout=120)
            if done % LOOK_EVERY == 0:
                for pid in (pid for worker in started.workers for pid in worker.pids):
                    sizes.setdefault(pid, []).append(resident(pid))

    for of_process in sizes.values():
        figure("a worker's process, MB at every 50,000 items: " + ", ".join(f"{size:.0f}" for size in of_process))
    third = ITEMS // LOOK_EVERY // 3
    growth = [mean(of[-third:]) / mean(of[-2 * third : -third]) for of in sizes.values()]
    assert max(growth) < 1.05
