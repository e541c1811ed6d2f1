"""The log of a batch of rooms: its size, and at the level DEBUG its rooms."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId

from models.database import server_now
from queue_manager.batching import execution
from queue_manager.batching.task import PoolRequest
from queue_manager.core.clock import seconds
from tasks.support_snooze import unsnooze_room
from tests.real_servers import Servers
from tests.rooms import get_room, make_room

UNSNOOZED, ENDED, ITEMS = "Unsnoozed 3 rooms", "A batch of tasks ended", "Items of the batch"


def run_batch(rooms: list[ObjectId]) -> None:
    requests: list[PoolRequest] = [(f"task-{room}", {"id": f"task-{room}"}, ((str(room),), {}, {})) for room in rooms]
    execution.run(unsnooze_room.name, requests)


@pytest.mark.parametrize(("level", "lines"), [("INFO", [UNSNOOZED, ENDED]), ("DEBUG", [UNSNOOZED, ENDED, ITEMS])])
def test_a_batch_logs_its_size_and_at_debug_level_its_items(
    level: str, lines: list[str], clean: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(level, logger="queue_manager")
    rooms = [make_room(server_now() - seconds(9)) for _ in range(3)]
    run_batch(rooms)
    assert {get_room(room)["status"] for room in rooms} == {"open"}
    said: list[dict[str, Any]] = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    ours = [one for one in said if one["event"] in (UNSNOOZED, ENDED, ITEMS)]
    assert [one["event"] for one in ours] == lines
    assert ours[0]["initiator"] == "QM/conversations/support-snooze"
    assert [one["items"] for one in ours[2:]] == [[[str(room)] for room in rooms]] * (level == "DEBUG")
