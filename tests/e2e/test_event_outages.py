"""The event of a room is sent although Redis or its Socket.IO servers are unavailable, or the worker is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.servers import Valkey
from models import outbox
from models.database import Document, collection, server_now
from queue_manager.core.clock import seconds, to_iso
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.watching import is_open, listening, times_woken
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room, resnooze

pytestmark = pytest.mark.crash

ENV = {"QM_LEASE_SECONDS": "2", "QM_SNOOZE_SCAN_SECONDS": "1", "RESUBSCRIBE_SECONDS": "6"}


def postponed() -> Document | None:
    """Return the record of a batch whose event was sent, and will be sent again."""
    return collection(outbox.OUTBOX_COLLECTION).find_one({"postponed_until": {"$exists": True}})


@pytest.mark.parametrize("is_killed", [False, True], ids=["worker lives", "worker killed"])
def test_event_is_received_by_a_server_that_subscribes_after_the_outage(
    is_killed: bool, clean: Servers, tmp_path: Path
) -> None:
    crash = {"CRASH_AT": "written", "CRASH_DO": "hold", "CRASH_MARK": str(tmp_path / "go on")}
    with Valkey(tmp_path / "valkey") as valkey:
        env = {**ENV, "REDIS_URL": valkey.url}
        with (
            worker(tmp_path / "worker.log", app="tests.e2e.crash_app", env={**env, **crash}) as process,
            CeleryProcess(tmp_path / "beat.log", "beat", env=env),
        ):
            room = make_room(server_now() - seconds(1))
            eventually(lambda: is_open(room))  # and its event is not sent yet
            valkey.kill()
            resnooze(room, server_now() + seconds(3600))
            if is_killed:
                process.kill()
            (tmp_path / "go on").touch()
            if not is_killed:
                eventually(lambda: "`after` failed" in process.log)
            valkey.start()
            if is_killed:
                process.start()

            eventually(postponed)  # it was sent while no server had subscribed
            with listening(valkey.url) as heard:
                (event, *_) = eventually(lambda: heard.of(room))
            eventually(lambda: collection(outbox.OUTBOX_COLLECTION).count_documents({}) == 0)
    assert [to_iso(at) for at in times_woken(room)] == [event["timestamp"]]
