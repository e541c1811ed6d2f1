"""Our workers and those of another, stock Celery application share one Redis without affecting each other."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from bson import ObjectId
from celery import Celery
from celery.schedules import schedule
from redbeat import RedBeatSchedulerEntry
from redbeat.schedulers import ensure_conf

from models.database import server_now
from queue_manager.beat import old_schedule
from queue_manager.beat.leader_lock import LEADER_LOCK, LeaderLock
from queue_manager.beat.status import OLD_LEADER_LOCK, SCHEDULE_KEY, leadership
from queue_manager.broker import keys
from queue_manager.broker.old_keys import MESSAGES_PER_CALL, OldKeys
from queue_manager.core.clock import seconds
from queue_manager.worker.old_keys import queues_by_task
from tasks import app
from tests.e2e.celery_processes import QUICK_START, CeleryProcess, worker
from tests.e2e.watching import is_open
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import get_room, make_room

pytestmark = pytest.mark.processes

UNSNOOZE = "tasks.support_snooze.unsnooze_room"
OLD_TAG = "0123456789abcdef0123456789abcdef-7-0001@0"


@pytest.fixture
def shop(clean: Servers) -> Iterator[Celery]:
    with Celery("shop", broker=clean.valkey.url, set_as_current=False) as shop:
        yield shop


def shop_worker(servers: Servers, log: Path, *arguments: str) -> CeleryProcess:
    options = ("--concurrency", "1", "--loglevel", "info", *QUICK_START, *arguments)
    return CeleryProcess(log, "worker", *options, app="tests.e2e.shop_app", env={"SHOP_URL": servers.valkey.url})


def charged(client: redis.Redis) -> list[int]:
    return sorted(map(int, client.lrange("shop:charged", 0, -1)))


def due_room() -> ObjectId:
    return make_room(server_now() - seconds(1), snooze_queue_in_progress=True)


def test_applications_sharing_redis_execute_only_their_own_tasks_once(
    clean: Servers, client: redis.Redis, shop: Celery, tmp_path: Path
) -> None:
    theirs = shop_worker(clean, tmp_path / "shop", "--queues", "celery,slow", "--prefetch-multiplier", "30")
    with worker(tmp_path / "ours", app="tests.e2e.short_timeout_app") as ours, theirs:
        for number in range(20):
            shop.send_task("shop.charge", [number])
        eventually(lambda: charged(client) == [*range(20)])

        client.delete("shop:charged")
        for number in range(6):  # the last one is held three times as long as our timeout
            shop.send_task("shop.charge", [number, 2], queue="slow")
        eventually(lambda: client.hlen(keys.OLD_UNACKED) == 6)
        rooms = [due_room() for _ in range(5)]
        for room in rooms:
            shop.send_task(UNSNOOZE, [str(room)], queue="support-snooze")
        eventually(lambda: all(is_open(room) for room in rooms))
        eventually(lambda: client.hlen(keys.OLD_UNACKED) == 0)

        assert charged(client) == [*range(6)]
        assert client.llen("qm:dead-letters") == 0
        assert ours.is_alive()


def test_broadcasts_reach_their_own_workers_alone(
    clean: Servers, client: redis.Redis, shop: Celery, tmp_path: Path
) -> None:
    with worker(tmp_path / "ours", "--hostname", "ours@h") as ours, shop_worker(clean, tmp_path / "shop") as theirs:
        assert list(app.control.inspect(timeout=3).ping()) == ["ours@h"]
        assert "ours@h" not in shop.control.inspect(timeout=3).ping()

        shop.control.shutdown()
        eventually(lambda: not theirs.is_alive())
        room = due_room()
        app.send_task(UNSNOOZE, [str(room)], queue="support-snooze")
        eventually(lambda: is_open(room))
        assert ours.is_alive()

        with shop_worker(clean, tmp_path / "another") as another:
            app.control.shutdown()
            eventually(lambda: not ours.is_alive())
            shop.send_task("shop.charge", [1])
            eventually(lambda: charged(client) == [1])
            assert another.is_alive()


def test_calls_without_a_queue_are_executed_and_foreign_tasks_are_kept(
    client: redis.Redis, shop: Celery, tmp_path: Path
) -> None:
    shop.send_task("shop.charge", [1])
    rooms = [due_room(), due_room()]
    shop.send_task(UNSNOOZE, [str(rooms[0])])
    shop.send_task("shop.charge", [2], priority=6)
    shop.send_task(UNSNOOZE, [str(rooms[1])], priority=6)
    before = [message for message in client.lrange("celery", 0, -1) if "shop.charge" in message]

    with worker(tmp_path / "ours"):
        eventually(lambda: all(is_open(room) for room in rooms))

    assert client.lrange("celery", 0, -1) == before
    assert client.llen(keys.list_of("celery", 6)) == 1
    assert client.llen("qm:dead-letters") == 0


def test_results_are_stored_for_a_day_if_there_is_a_backend(
    clean: Servers, client: redis.Redis, shop: Celery, tmp_path: Path
) -> None:
    shop.conf.result_backend = clean.valkey.url
    with worker(tmp_path / "ours", env={"CELERY_RESULT_BACKEND": clean.valkey.url}):
        sent = shop.send_task(UNSNOOZE, [str(ObjectId())], queue="support-snooze", ignore_result=False)
        assert sent.get(timeout=60) == {"skipped": True, "reason": "Room not found"}

    [key] = client.keys("celery-task-meta-*")
    assert 0 < client.ttl(key) <= 24 * 3600


def test_messages_held_by_workers_of_release_0_1_are_requeued_when_overdue(
    client: redis.Redis, shop: Celery, tmp_path: Path
) -> None:
    overdue, renewed, without_queue = due_room(), due_room(), due_room()
    hold(client, shop, OLD_TAG, UNSNOOZE, overdue, queue="support-snooze", ago=60)
    hold(client, shop, OLD_TAG[:-1] + "3", UNSNOOZE, without_queue, queue="celery", ago=60)
    hold(client, shop, OLD_TAG.replace("7", "8"), UNSNOOZE, renewed, queue="support-snooze", ago=5)
    hold(client, shop, "a-stock-tag", UNSNOOZE, renewed, queue="support-snooze", ago=7200)
    hold(client, shop, OLD_TAG.replace("7", "9"), "shop.charge", 1, queue="celery", ago=60)

    with worker(tmp_path / "ours"):
        eventually(lambda: is_open(overdue) and is_open(without_queue))
        eventually(lambda: client.llen("celery") == 1)

    assert sorted(client.hkeys(keys.OLD_UNACKED)) == sorted(client.zrange(keys.OLD_UNACKED_INDEX, 0, -1))
    assert sorted(client.hkeys(keys.OLD_UNACKED)) == sorted([OLD_TAG.replace("7", "8"), "a-stock-tag"])
    assert not is_open(renewed)
    assert get_room(renewed)["snooze_queue_in_progress"] is True


def hold(client: redis.Redis, shop: Celery, tag: str, task: str, argument: object, *, queue: str, ago: float) -> None:
    """Have a message as a worker held it that renewed it `ago` seconds ago."""
    shop.send_task(task, [str(argument)], queue="held-for-a-test")
    message: Any = client.rpop("held-for-a-test")
    client.hset(keys.OLD_UNACKED, tag, f'[{message}, "", {json.dumps(queue)}]')
    client.zadd(keys.OLD_UNACKED_INDEX, {tag: time.time() - ago})


def shop_beat(servers: Servers, log: Path) -> CeleryProcess:
    return CeleryProcess(
        log, "beat", "--loglevel", "info", app="tests.e2e.shop_app", env={"SHOP_URL": servers.valkey.url}
    )


def save_entry(app: Celery, name: str, task: str, prefix: str) -> None:
    """Save an entry as a program does, under `prefix`."""
    conf = ensure_conf(app)
    ours, conf.key_prefix, conf.schedule_key = (conf.key_prefix, conf.schedule_key), prefix, f"{prefix}:schedule"
    try:
        RedBeatSchedulerEntry(name, task, schedule(1), args=["a-room"], app=app).save()
    finally:
        conf.key_prefix, conf.schedule_key = ours


def test_each_beat_keeps_its_own_lock_and_entries(clean: Servers, client: redis.Redis, tmp_path: Path) -> None:
    with shop_beat(clean, tmp_path / "theirs") as theirs:
        eventually(lambda: client.llen("celery") >= 2)
        with CeleryProcess(tmp_path / "ours", "beat") as ours:
            eventually(lambda: client.exists(LEADER_LOCK))
            save_entry(app, "of-a-user", UNSNOOZE, keys.SCHEDULE_PREFIX)
            eventually(lambda: "sent of-a-user" in ours.log)
            before = client.llen("celery")
            eventually(lambda: client.llen("celery") >= before + 3)

            assert client.type(OLD_LEADER_LOCK) == "string"
            assert client.smembers(old_schedule.OLD_STATICS) == {"charge"}
            assert {*client.zrange(old_schedule.OLD_SCHEDULE, 0, -1)} == {
                "redbeat:charge",
                "redbeat:celery.backend_cleanup",
            }
            assert theirs.is_alive()


def test_leader_takes_our_entries_of_release_0_1_and_no_others(
    clean: Servers, client: redis.Redis, tmp_path: Path
) -> None:
    with CeleryProcess(tmp_path / "first", "beat"):
        eventually(lambda: client.exists(SCHEDULE_KEY))
    client.delete(LEADER_LOCK)  # its beat was killed
    systems = client.zrange(SCHEDULE_KEY, 0, -1)
    app.loader.import_default_modules()
    foreign = ["shop.charge", "celery.backend_cleanup"]
    for task in (UNSNOOZE, *foreign):
        save_entry(app, task, task, "redbeat:")
    save_entry(app, "support-snooze", UNSNOOZE, "redbeat:")
    save_entry(app, "configured-by-another-application", UNSNOOZE, "redbeat:")
    configured_by_others = {"configured-by-another-application", "charge"}
    client.sadd(old_schedule.OLD_STATICS, "support-snooze", *configured_by_others)
    broken: dict[Any, int] = {b"redbeat:\xff": 1, "redbeat:a-text": 1, "another-key": 1}
    client.zadd(old_schedule.OLD_SCHEDULE, broken)
    client.set("redbeat:a-text", "a text")
    stored = client.hgetall("redbeat:shop.charge")

    with CeleryProcess(tmp_path / "ours", "beat") as ours:
        eventually(lambda: f"sent {UNSNOOZE}" in ours.log)

    assert sorted(client.zrange(SCHEDULE_KEY, 0, -1)) == sorted([*systems, keys.SCHEDULE_PREFIX + UNSNOOZE])
    assert not client.exists("redbeat:" + UNSNOOZE, "redbeat:support-snooze")
    assert client.exists("redbeat:configured-by-another-application")
    assert client.zcard(old_schedule.OLD_SCHEDULE) == len(foreign) + len(broken) + 1
    assert client.hgetall("redbeat:shop.charge") == stored
    assert client.smembers(old_schedule.OLD_STATICS) == configured_by_others


def test_our_beat_stands_by_while_one_of_release_0_1_leads(clean: Servers, client: redis.Redis, tmp_path: Path) -> None:
    older = LeaderLock(client, OLD_LEADER_LOCK, lease=seconds(60))
    older.acquire()
    with CeleryProcess(tmp_path / "ours", "beat") as ours:
        eventually(lambda: "a beat of release 0.1 leads" in ours.log)
        assert not client.exists(LEADER_LOCK)
        older.release()
        eventually(lambda: (found := leadership(client, LEADER_LOCK)) and found.epoch == 2)
        sent = len(ours.log)

        older.acquire()
        eventually(lambda: not client.exists(LEADER_LOCK))
        assert older.epoch == 3  # of all beats, the one that took over last has the highest
        eventually(lambda: "a beat of release 0.1 leads" in ours.log[sent:])


def test_our_messages_are_found_behind_many_foreign_ones_in_bounded_runs(
    client: redis.Redis, shop: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_manager.broker.old_keys.MAX_SCRIPT_CALLS", 2)
    foreign = [
        json.dumps({"headers": {"task": "shop.charge", "id": str(number)}}) for number in range(5 * MESSAGES_PER_CALL)
    ]
    odd = ["no JSON", "[]", '{"headers": null}', '{"headers": {"task": 5}}', "[" * 5000]
    client.lpush("celery", *foreign, *odd)
    shop.send_task(UNSNOOZE, ["last"])
    app.loader.import_default_modules()
    old = OldKeys(queues_by_task())

    runs = [old.empty(client) for _ in range(3)]

    assert runs == [0, 0, 1]
    assert client.llen("support-snooze") == 1
    assert client.lrange("celery", 0, -1) == [*reversed(odd), *reversed(foreign)]
