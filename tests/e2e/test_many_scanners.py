"""Many scans at once: each room is published once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from models import support_room
from models.database import server_now
from queue_manager.core.clock import seconds
from tests.e2e.celery_processes import ROOT, TESTS
from tests.real_servers import Servers
from tests.rooms import T0
from tests.tasks.hand_worker import waiting_messages

pytestmark = pytest.mark.scale

SCANNERS, ROOMS = 8, 10_000


def test_eight_scanners_publish_ten_thousand_rooms_once_each(clean: Servers) -> None:
    due_at = server_now() - seconds(1)
    support_room.rooms().insert_many(
        {"status": "snoozed", "snooze_time": {"time": due_at, "set_at": T0}} for _ in range(ROOMS)
    )
    command = [sys.executable, str(TESTS / "scan_until_done.py"), str(SCANNERS)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "QM_MAX_QUEUE": str(2 * ROOMS)}

    scanners = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(SCANNERS)]
    outputs = [scanner.communicate(timeout=90)[0] for scanner in scanners]

    assert [scanner.returncode for scanner in scanners] == [0] * SCANNERS
    runs = [run for output in outputs for run in json.loads(output)]
    assert sum(run["enqueued"] for run in runs) == ROOMS
    sent = Counter(message.args[0] for message in waiting_messages(clean.valkey.url, "support-snooze"))
    assert len(sent) == ROOMS
    assert set(sent.values()) == {1}
    assert any("already_running" in run for run in runs), "the scanners never met: nothing was shown"
