"""The Celery programs that `make bench` compares with do the same work: wake a room and emit its event."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.rooms.listener import Listener
from tests.real_servers import Servers
from tests.rooms import is_awake, make_room


@pytest.mark.parametrize(
    "call",
    ["first_attempt.unsnooze_room('{}')", "hand_tuned.unsnooze_rooms(['{}'])"],
)
def test_celery_without_queue_manager_wakes_a_room(clean: Servers, call: str) -> None:
    room_id = make_room()
    listener = Listener(clean.valkey.url, "events")
    try:
        # In a process of its own, because each contender is a Celery application, and becomes the current one.
        program = f"from benchmarks.rooms import first_attempt, hand_tuned; {call.format(room_id)}"
        subprocess.run([sys.executable, "-c", program], env={**os.environ, "SOCKETIO_CHANNEL": "events"}, check=True)
        assert listener.wait(1, 10)
        assert listener.rooms() == {str(room_id): 1}
    finally:
        listener.close()
    assert is_awake(room_id)
