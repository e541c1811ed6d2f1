"""`queue-manager adopt`: its report about the data, queues and workers of an older application."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from dev.servers import DATABASE
from models import support_room
from models.database import server_now
from queue_manager.core.clock import hours, minutes
from queue_manager.core.redis_client import make_client
from queue_manager.core.settings import settings
from services import adoption, review_requests, support_snooze
from tests.docs.transcript import Transcript
from tests.documented import DOCS, block, output
from tests.e2e.commands import queue_manager
from tests.e2e.test_command_line import indexed
from tests.eventually import eventually
from tests.predecessors.node_process import node
from tests.real_servers import Servers
from tests.rooms import get_room, make_room

ROOMS, REQUESTS = support_snooze.system, review_requests.system


@pytest.mark.usefixtures("clean")
def test_plan_counts_documents_of_another_program() -> None:
    now = server_now()
    make_room(now - minutes(1), snooze_queue_in_progress=True)
    make_room(now - minutes(1))
    make_room(now + hours(1), snooze_queue_in_progress=True)
    for snooze_time in (now, {"time": "tomorrow"}):
        make_room(snooze_time=snooze_time)
    flagged, malformed = adoption.plan(ROOMS).notes
    assert flagged.startswith("1 due room with snooze_queue_in_progress: true")
    assert malformed.startswith("2 rooms with a malformed snooze_time")


@pytest.mark.usefixtures("clean")
def test_plan_names_missing_indexes_and_refused_writes() -> None:
    support_room.rooms().drop_indexes()
    rooms = adoption.plan(ROOMS)
    assert [name for name in rooms.missing_indexes if name.startswith("support_rooms.")] == rooms.missing_indexes
    assert "support_rooms.malformed_snooze" in rooms.missing_indexes
    assert rooms.refused_writes == []
    requests = adoption.plan(REQUESTS)
    assert requests.missing_indexes == []
    by_account, by_parent = requests.refused_writes
    assert by_account.startswith("projects.pulse: a second document with the same account_id among documents with {")
    assert '"type": "review_request"' in by_parent


@pytest.mark.usefixtures("clean")
def test_plan_of_a_system_without_a_predecessor_is_empty() -> None:
    assert not any(vars(adoption.plan(ROOMS)).values())


@pytest.mark.node
@pytest.mark.usefixtures("clean")
def test_plan_counts_jobs_and_workers_of_a_bull_queue() -> None:
    with node("bull_queue.mjs", "support-snooze", "producer", REDIS_URL=settings().redis_url) as producer:
        assert producer.next() == "ready"
        (jobs,) = adoption.plan(ROOMS).notes
        assert jobs.startswith("2 jobs in Bull's queue support-snooze")
        with node("bull_queue.mjs", "support-snooze", "worker", REDIS_URL=settings().redis_url) as worker:
            assert worker.next() == "ready"
            eventually(lambda: "1 job in" in adoption.plan(ROOMS).notes[-1])  # the other one is delayed
            assert adoption.plan(ROOMS).notes[0].startswith("1 worker of Bull's queue support-snooze connected")


@pytest.fixture
def shop(clean: Servers) -> Iterator[str]:
    """The URL of a database with two open requests of one account."""
    with MongoClient[dict[str, Any]](clean.mongo.url) as client:
        client.drop_database("shop")
        request = {"type": "review_request", "status": "pending", "account_id": ObjectId()}
        client["shop"]["projects.pulse"].insert_many([{**request}, {**request}])
        yield clean.mongo.url.replace(f"/{DATABASE}?", "/shop?")
        client.drop_database("shop")


@pytest.mark.processes
def test_command_changes_nothing_without_yes(shop: str, tmp_path: Path) -> None:
    result = queue_manager("adopt", cwd=tmp_path, MONGO_DB_URL=shop, QM_PROJECTS="true")
    assert result.returncode == 0, result.stderr
    assert "\n  creates  projects.pulse.one_open_review_by_account_id\n" in result.stdout
    assert "\n  repair   projects.pulse: account_id" in result.stdout
    assert result.stdout.endswith("\nNothing was changed; add --yes to create the indexes\n")
    assert "job-queues" not in result.stdout
    assert indexed(shop) == set()


@pytest.mark.processes
def test_command_shows_what_the_documentation_shows(clean: Servers, tmp_path: Path) -> None:
    name = f"bull:{b64encode(b'support-snooze').decode()}"
    with (
        MongoClient[dict[str, Any]](clean.mongo.url) as client,
        make_client(clean.valkey.url, client_name=name) as bull,
    ):
        bull.ping()
        client.drop_database("shop")
        rooms = [get_room(make_room(server_now() - minutes(1), snooze_queue_in_progress=True)) for _ in range(3)]
        client["shop"]["support_rooms"].insert_many(rooms)
        url = clean.mongo.url.replace(f"/{DATABASE}?", "/shop?")
        result = queue_manager("adopt", cwd=tmp_path, MONGO_DB_URL=url)
        client.drop_database("shop")
    assert result.returncode == 0, result.stderr
    assert Transcript().matches(output(block(0, heading="Cut over", page=DOCS / "migrating.md")), result.stdout)


@pytest.mark.processes
def test_command_adopts_systems_without_obstacles(shop: str, tmp_path: Path) -> None:
    result = queue_manager("adopt", "--yes", cwd=tmp_path, MONGO_DB_URL=shop, QM_PROJECTS="true")
    assert result.returncode == 2
    assert "review-requests could not be migrated, everything else is done" in result.stderr
    assert "support_rooms" in indexed(shop)
    assert "projects.pulse" not in indexed(shop)
    result = queue_manager("adopt", "--yes", cwd=tmp_path, MONGO_DB_URL=shop)
    assert result.returncode == 0, result.stderr
    assert "indexes are in place" in result.stdout
