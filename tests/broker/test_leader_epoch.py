"""A schedule entry that requests the epoch is sent with that of the leading beat, also after takeovers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from dev.servers import Valkey
from tests.broker.guard_app import every
from tests.broker.taking import body
from tests.broker.test_leader_scheduler import OFTEN, scheduling
from tests.eventually import eventually

ENTRIES = {"asks": {**every(OFTEN, "asks"), "kwargs": {"epoch": None, "other": 1}}, "plain": every(OFTEN, "plain")}


@pytest.fixture
def emptied(server: Valkey) -> Iterator[Redis]:
    with Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        yield client


def sent(client: Redis, queue: str) -> list[dict[str, Any]]:
    """Return the keyword arguments of the messages that wait, the first sent first."""
    bodies = [body(raw) for raw in client.lrange(queue, 0, -1)]
    return [kwargs for _, kwargs, _ in reversed(bodies)]


def test_entry_that_requests_the_epoch_is_sent_with_it(server: Valkey, emptied: Redis) -> None:
    for epoch in (1, 2, 3):
        with scheduling(server, ENTRIES) as scheduler:
            eventually(lambda scheduler=scheduler, epoch=epoch: scheduler.tick() and is_sent(emptied, epoch))
            assert scheduler.epoch == epoch
    assert [kwargs["epoch"] for kwargs in sent(emptied, "asks")] == sorted(
        kwargs["epoch"] for kwargs in sent(emptied, "asks")
    )
    assert {kwargs["other"] for kwargs in sent(emptied, "asks")} == {1}
    assert {str(kwargs) for kwargs in sent(emptied, "plain")} == {"{}"}


def is_sent(client: Redis, epoch: int) -> bool:
    return any(kwargs["epoch"] == epoch for kwargs in sent(client, "asks"))


def test_epochs_restart_at_one_after_redis_lost_its_data(tmp_path: Path) -> None:
    with Valkey(tmp_path / "redis") as valkey, Redis.from_url(valkey.url, decode_responses=True) as client:
        for _ in range(2):
            with scheduling(valkey, ENTRIES) as scheduler:
                eventually(lambda scheduler=scheduler: scheduler.tick() and sent(client, "asks"))
        assert scheduler.epoch == 0  # released
        client.flushall()
        with scheduling(valkey, ENTRIES) as scheduler:
            eventually(lambda: scheduler.tick() and sent(client, "asks"))
            assert {kwargs["epoch"] for kwargs in sent(client, "asks")} == {1}
