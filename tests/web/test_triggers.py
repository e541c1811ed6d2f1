"""Manual triggers: one scan now, never two concurrently, and clear errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from beat_schedule import SYSTEMS
from dev.ports import free_port
from models import scan_run
from models.database import collection, server_now
from queue_manager.core.clock import seconds
from queue_manager.core.settings import settings
from queue_manager.system import System
from queue_manager.web.routes.triggers import spellings
from tests.e2e.celery_processes import worker
from tests.e2e.watching import is_open
from tests.eventually import eventually
from tests.pace import promptly
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.tasks.hand_worker import run, take
from tests.web.web_process import SNOOZE, Web, forked_web, shared_web

TASK = "tasks.support_snooze.scan_expired_snoozes"


@pytest.fixture(scope="session")
def hooked(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    return shared_web(tmp_path_factory, QM_HOOKS="true", QM_CONVERSATIONS="false", QM_SNOOZE_SCAN_SECONDS="600")


def test_a_trigger_sends_one_scan_and_a_second_is_refused(clean: Servers, hooked: Web) -> None:
    first, second = hooked.post(SNOOZE), hooked.post(SNOOZE)
    assert (first.status, second.status) == (202, 409)
    assert second.body == {"error": "already running", "message": second.body["message"]}
    with redis.Redis.from_url(clean.valkey.url) as client:
        (message,) = client.lrange("scans", 0, -1)
    headers = json.loads(message)["headers"]
    assert (headers["task"], headers["id"]) == (TASK, first.body["task_id"])
    assert headers["expires"] is None  # which a worker would judge by its own clock


@pytest.mark.slow
def test_triggers_that_no_worker_took_are_one_run(clean: Servers, hooked: Web, tmp_path: Path) -> None:
    with redis.Redis.from_url(clean.valkey.url) as client:
        for _ in range(3):
            assert hooked.post(SNOOZE).status == 202
            collection(scan_run.RUNNING_COLLECTION).delete_many({})  # as after a period
        skipped = hooked.post(SNOOZE).body["task_id"]
        with worker(tmp_path / "worker.log"):
            eventually(lambda: client.llen("scans") == 0 and client.hlen("qm:unacked") == 0)
            marks = collection(scan_run.RUNNING_COLLECTION)
            eventually(lambda: marks.find_one({"runs.token": skipped}) is None)
            eventually(lambda: len(scan_run.latest(TASK, limit=10)) == 1)
            eventually(lambda: hooked.post(SNOOZE).status == 202)
            eventually(lambda: len(scan_run.latest(TASK, limit=10)) == 2)


def test_one_of_many_concurrent_triggers_is_accepted(clean: Servers, hooked: Web) -> None:
    with ThreadPoolExecutor(6) as threads:
        statuses = [answer.status for answer in threads.map(hooked.post, [SNOOZE] * 6)]
    assert sorted(statuses) == [202, 409, 409, 409, 409, 409]


def test_the_camel_case_spelling_is_the_same_job(clean: Servers, hooked: Web) -> None:
    assert hooked.post("/api/trigger/conversations/supportSnooze").status == 202
    assert hooked.post(SNOOZE).status == 409


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_every_system_has_its_trigger(system: System, clean: Servers, hooked: Web) -> None:
    assert hooked.post(f"/api/trigger/{system.trigger}").status == 202


def test_the_last_part_alone_is_spelled_in_camel_case() -> None:
    assert spellings("some-group/one-more-job") == ("some-group/one-more-job", "some-group/oneMoreJob")


def test_an_unknown_trigger_is_404_with_the_known_ones(hooked: Web) -> None:
    answer = hooked.post("/api/trigger/conversations/nonsense")
    assert (answer.status, answer.body["error"]) == (404, "unknown job")
    assert answer.body["message"].startswith("There is no trigger 'conversations/nonsense'; the triggers are: ")
    assert "conversations/support-snooze" in answer.body["message"]


def test_a_trigger_during_a_scan_is_refused(clean: Servers, hooked: Web) -> None:
    scan_run.begin(TASK, "beat sent this", now=server_now())
    assert hooked.post(SNOOZE).status == 409
    scan_run.end(TASK, "beat sent this")
    assert hooked.post(SNOOZE).status == 202


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_an_unprocessed_trigger_blocks_others_for_a_period_of_at_most_five_minutes(
    system: System, clean: Servers, hooked: Web
) -> None:
    period = seconds(600) if system.scan_task == TASK else system.period(settings())
    lease, before = min(period, seconds(300)), server_now()
    hooked.post(f"/api/trigger/{system.trigger}")
    # One second, because two processes know the server's clock to within a round trip.
    assert system.scan_task in scan_run.running(now=before + lease - seconds(1))
    assert system.scan_task not in scan_run.running(now=server_now() + lease + seconds(1))


def test_a_page_of_another_site_may_not_trigger(clean: Servers, hooked: Web) -> None:
    assert hooked.post(SNOOZE, Sec_Fetch_Site="cross-site").status == 403
    assert hooked.post(SNOOZE, Sec_Fetch_Site="same-origin").status == 202


def test_a_trigger_wakes_due_rooms_although_the_system_is_off(
    clean: Servers, hooked: Web, change_settings: Callable[..., None]
) -> None:
    change_settings(QM_CONVERSATIONS="false")
    room = make_room(server_now() - seconds(1))
    assert hooked.post(SNOOZE).status == 202
    run(take(clean.valkey.url, "scans"))
    run(take(clean.valkey.url, "support-snooze"))
    assert is_open(room)


def test_an_unavailable_broker_is_503_and_leaves_no_mark(clean: Servers, tmp_path: Path) -> None:
    gone = f"redis://:s3cret@127.0.0.1:{free_port()}/0"
    with forked_web(tmp_path, QM_HOOKS="true", REDIS_URL=gone) as process:
        with promptly(5):
            answer = process.post(SNOOZE)
    assert (answer.status, answer.body["error"]) == (503, "unavailable")
    assert answer.body["message"].startswith("The broker at redis://")
    assert "s3cret" not in answer.text + process.log
    assert collection(scan_run.RUNNING_COLLECTION).find_one({"runs.0": {"$exists": True}}) is None


@pytest.mark.slow
def test_unavailable_mongodb_is_503(servers: Servers, tmp_path: Path) -> None:
    gone = f"mongodb://127.0.0.1:{free_port()}/product"
    with forked_web(tmp_path, QM_HOOKS="true", MONGO_DB_URL=gone) as process:
        with promptly(5):
            answer = process.post(SNOOZE)
    assert (answer.status, answer.body["error"]) == (503, "unavailable")
    assert answer.body["message"].startswith(f"MongoDB at {gone} does not answer")
