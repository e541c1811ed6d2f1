"""Rooms and sites with ids of other types through a real worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from bson import ObjectId

from models.database import collection, server_now
from models.document_id import shown_id
from queue_manager.core.clock import hours, seconds
from tasks import app
from tests.e2e.celery_processes import worker
from tests.e2e.watching import is_open, listening, send_scan
from tests.eventually import eventually
from tests.odd_ids import ODD_IDS
from tests.real_servers import Servers
from tests.rooms import make_room

pytestmark = pytest.mark.processes


def test_rooms_wake_with_their_events_and_sites_are_reset(clean: Servers, tmp_path: Path) -> None:
    ids = [ObjectId(), *ODD_IDS]
    rooms = [make_room(server_now() - seconds(1), _id=id) for id in ids]
    building = {"thumbnail_build_in_progress": True, "thumbnail_process_started_at": server_now() - hours(5)}
    sites = collection("agency_websites")
    sites.insert_many({"_id": id, **building} for id in ids)
    with (
        listening(clean.valkey.url) as heard,
        worker(tmp_path / "log", env={"QM_SITES_FIX_STALE_THUMBNAILS": "true"}) as process,
    ):
        send_scan()
        app.send_task("tasks.stale_thumbnails.scan_stale_thumbnails", queue="scans")
        eventually(lambda: all(map(is_open, rooms)))
        eventually(lambda: not sites.count_documents({"thumbnail_build_in_progress": True}))
        eventually(lambda: all(heard.of(shown_id(id)) for id in ids))
        assert "final attempt" not in process.log
