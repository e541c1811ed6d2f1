"""Lines that alerts on the logs of the older services look for: the same text, from the same initiator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beat_schedule import SYSTEMS
from models import database
from models.database import server_now
from queue_manager.core.clock import minutes
from queue_manager.core.errors import ScanFailed
from queue_manager.core.redis_client import connect
from tasks.overdue_messages import requeue_overdue_messages
from tasks.review_requests import scan_eligible_agencies
from tasks.scan import ScanTask
from tasks.stale_thumbnails import scan_stale_thumbnails
from tasks.support_snooze import scan_expired_snoozes
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.web_process import forked_web


def drop_indexes(_: Servers) -> None:
    for system in SYSTEMS:
        for name in system.collections():
            database.collection(name).drop_indexes()


def replace_the_deadlines(servers: Servers) -> None:
    with connect(servers.valkey.url) as client:
        client.set("queue:deadlines", "not a sorted set")


@pytest.mark.parametrize(
    ("scan", "break_it", "initiator", "line"),
    [
        (
            scan_expired_snoozes,
            drop_indexes,
            "QM/conversations/support-snooze",
            "Error occured while removing snooze time for rooms",
        ),
        (scan_eligible_agencies, drop_indexes, "QM/projects/reviewRequestPulse", "Error in review requests"),
        (scan_stale_thumbnails, drop_indexes, "ThumbnailHealthCheck", "Error in thumbnail health check"),
        (
            requeue_overdue_messages,
            replace_the_deadlines,
            "QM/message-queue",
            "Overdue requeue worker failed",
        ),
    ],
)
def test_failed_scan_logs_the_line_of_the_predecessor(
    scan: ScanTask,
    break_it: Callable[[Servers], None],
    initiator: str,
    line: str,
    clean: Servers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    break_it(clean)
    with pytest.raises(ScanFailed):
        scan()
    errors = [said for said in lines(caplog) if (said["event"], said["initiator"]) == (line, initiator)]
    assert errors
    assert all(said["error"] for said in errors)


def test_successful_scan_logs_the_line_of_the_predecessor(clean: Servers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    make_room(server_now() - minutes(1))
    scan_expired_snoozes()
    (sent,) = [said for said in lines(caplog) if said["event"] == "Processed snooze rooms."]
    assert (sent["initiator"], sent["enqueued"]) == ("QM/conversations/support-snooze", 1)


@pytest.mark.processes
def test_start_of_the_sweeper_logs_the_line_of_the_predecessor(clean: Servers, tmp_path: Path) -> None:
    with forked_web(tmp_path, QM_MESSAGE_QUEUE="true", OVERDUE_CHECK_INTERVAL_MS="2500") as process:
        assert process.log.count("Overdue requeue worker started (interval=2500ms)") == 1


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.msg for record in caplog.records if isinstance(record.msg, dict)]
