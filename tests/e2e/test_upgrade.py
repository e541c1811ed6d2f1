"""What release 0.1 leaves in MongoDB and Redis when it is killed, taken over by a worker and a beat of this release."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from bson import ObjectId

from beat_schedule import SYSTEMS
from models import job_queue, schema
from models.database import collection, server_now
from queue_manager.beat.leader_lock import LeaderLock
from queue_manager.beat.status import OLD_LEADER_LOCK
from queue_manager.broker import keys
from queue_manager.core.clock import hours, minutes, seconds, to_iso, truncate
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.job_processes import count, job_beat, job_lab, job_worker, notes, overlaps, success_counts
from tests.e2e.watching import is_open, listening, times_woken, woken
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import get_room, make_room, resnooze

pytestmark = pytest.mark.processes

LEASE, PERIOD = 2.0, 0.5
ENV = {"QM_LEASE_SECONDS": str(LEASE), "QM_SNOOZE_SCAN_SECONDS": str(PERIOD)}
OLD_LEASE = minutes(1)
BUSY_ALLOWANCE = 20  # seconds, besides one lease and one period: for a busy machine
UNSNOOZE = "tasks.support_snooze.unsnooze_room"


def claim(id: Any, due_at: datetime, **fields: Any) -> dict[str, Any]:
    until = server_now() + OLD_LEASE
    return {
        "token": f"{uuid4().hex}-{id}",
        "held": True,
        "claimed_until": until,
        "due_at": due_at,
        "losses": 0,
        **fields,
    }


def given_back(due_at: datetime, until: datetime) -> dict[str, Any]:
    return {"token": None, "held": False, "claimed_until": until, "due_at": due_at, "losses": 0}


def claim_room(room: ObjectId, due_at: datetime, **fields: Any) -> str:
    """Claim and flag a room as a scan did; return the id of its item's task."""
    found = claim(room, due_at, **fields)
    update(room, claim=found)
    return str(found["token"])


def update(room: ObjectId, **fields: Any) -> None:
    collection("support_rooms").update_one({"_id": room}, {"$set": {"snooze_queue_in_progress": True, **fields}})


def message(queue: str, task: str, id: str, *args: Any, eta: datetime | None = None) -> str:
    body = [args, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    headers: dict[str, Any] = {
        "lang": "py",
        "task": task,
        "id": id,
        "shadow": None,
        "eta": eta and eta.isoformat(),
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": id,
        "parent_id": None,
        "argsrepr": repr(args),
        "kwargsrepr": "{}",
        "origin": "gen10148@old",
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties = {
        "correlation_id": id,
        "reply_to": str(uuid4()),
        "argsrepr": repr(args),
        "kwargsrepr": "{}",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": str(uuid4()),
    }
    return json.dumps(
        {
            "body": b64encode(json.dumps(body).encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": properties,
        }
    )


def hold(client: redis.Redis, queue: str, text: str) -> None:
    """Leave a message as a killed worker does: taken, and not acknowledged."""
    tag = f"{uuid4().hex}-1-0001@0"
    client.hset(keys.UNACKED, tag, f'[{text}, "", "{queue}"]')
    client.zadd(keys.UNACKED_INDEX, {tag: client.time()[0]})


def left_by_a_killed_beat(client: redis.Redis) -> None:
    LeaderLock(client, OLD_LEADER_LOCK, lease=seconds(3)).acquire()


def left_rooms(client: redis.Redis) -> dict[str, tuple[ObjectId, datetime]]:
    """Make rooms in every state; return the time from which each may be opened."""
    now = truncate(server_now())
    past, soon = now - seconds(3), now + seconds(4)
    states = ("waits", "taken", "never-sent", "ended", "lost", "ahead", "snoozed-again", "void", "cooling", "flagged")
    due = {state: soon if state in ("ahead", "snoozed-again") else past for state in states}
    rooms = {state: (make_room(at), at) for state, at in due.items()}
    ids = {state: room for state, (room, _) in rooms.items()}

    def sent(state: str, at: datetime, *, eta: datetime | None = None) -> str:
        token = claim_room(ids[state], at, claimed_until=at + OLD_LEASE)
        return message("support-snooze", UNSNOOZE, token, str(ids[state]), to_iso(at), eta=eta)

    client.lpush("support-snooze", sent("waits", past), sent("ahead", soon, eta=soon), sent("snoozed-again", past))
    hold(client, "support-snooze", sent("taken", past))
    claim_room(ids["never-sent"], past)
    claim_room(ids["ended"], past, claimed_until=now - minutes(1))
    claim_room(ids["lost"], past, claimed_until=now + hours(1), losses=6)
    claim_room(ids["void"], past - hours(1), claimed_until=now + hours(1))
    update(ids["flagged"], claim=given_back(past, now + OLD_LEASE))
    update(
        ids["cooling"],
        claim=given_back(past, now + hours(1)),
        snooze_queue_in_progress=False,
        unsnooze_error="OperationFailure: it failed",
        unsnooze_failures=7,
        unsnooze_retry_at=now + hours(1),
    )
    started = [json.dumps([str(ids[state]), to_iso(past)]) for state in ("taken", "lost")]
    client.zadd("qm:started:support-snooze", dict.fromkeys(started, client.time()[0]))
    client.hset("qm:losses:support-snooze", started[1], f"6:{client.time()[0]}")
    return rooms


@pytest.mark.smoke
def test_rooms_of_release_0_1_are_opened_once_and_on_time(clean: Servers, client: redis.Redis, tmp_path: Path) -> None:
    rooms = left_rooms(client)
    left_by_a_killed_beat(client)
    ids = [room for room, _ in rooms.values()]
    with (
        listening(clean.valkey.url) as heard,
        worker(tmp_path / "worker.log", env=ENV),
        CeleryProcess(tmp_path / "beat.log", "beat", env=ENV),
    ):
        eventually(lambda: all(map(is_open, ids)), within=3 + LEASE + PERIOD + BUSY_ALLOWANCE)
        for state, (room, due_at) in rooms.items():
            (woken_at,) = times_woken(room)
            assert woken_at >= due_at, state
            eventually(lambda room=room: heard.of(room), within=BUSY_ALLOWANCE)

        for room in ids:
            resnooze(room, truncate(server_now()))
        eventually(lambda: all(map(is_open, ids)), within=LEASE + PERIOD + BUSY_ALLOWANCE)
        assert [len(moments) for moments in woken(ids)] == [2] * len(ids)
    schema.finish(SYSTEMS)
    left = {"claim", "snooze_time", "unsnooze_error", "unsnooze_failures", "unsnooze_retry_at"}
    for found in map(get_room, ids):
        assert not left & {*found}
        assert found["snooze_queue_in_progress"] is False


def left_queues(client: redis.Redis) -> None:
    """Make a queue in every state, each with two jobs, and the leader of epoch 1."""
    now, lab = truncate(server_now()), job_lab()
    job_queue.lead(1, now=now)
    job_queue.settle(1)

    def left(name: str, **fields: Any) -> str:
        due_at = now - seconds(3)
        found = claim(name, due_at, **fields)
        job_queue.queues().insert_one({"_id": name, "due_at": due_at, "run_in_progress": True, "claim": found})
        return message("jobs", "tasks.job_queues.run_queue", found["token"], name, 1)

    jobs = {name: [lab.run(name, 0.05), lab.run(name)] for name in (f"n{number}" for number in range(8))}
    client.lpush("jobs", left("n0"))
    hold(client, "jobs", left("n1"))
    left("n2")  # claimed, and never sent
    left("n3", claimed_until=now - minutes(1))
    left("n4", claimed_until=now + hours(1), losses=6)
    left("n5")
    lab.executing(jobs["n5"][0], token="killed", lease=seconds(LEASE))
    job_queue.queues().insert_one({"_id": "n6", "due_at": now, "run_in_progress": False})
    job_queue.queues().insert_one({"_id": "n7", "due_at": now, "run_in_progress": False, "paused": True})


def test_jobs_of_release_0_1_are_executed_once_and_a_pause_stays(client: redis.Redis, tmp_path: Path) -> None:
    left_by_a_killed_beat(client)
    left_queues(client)
    names = [f"n{number}" for number in range(7)]
    with job_worker(tmp_path), job_beat(tmp_path):
        eventually(lambda: count("success", *names) == 14, within=3 + LEASE + PERIOD + BUSY_ALLOWANCE)
        assert success_counts(*names) == {1}
        assert len(notes(*names)) == 14
        assert overlaps(*names) == []
        assert count("pending", "n7") == 2
    schema.finish(SYSTEMS)
    assert job_queue.queues().count_documents({"claim": {"$exists": True}}) == 0
    assert {*job_queue.pauses()} == {"n7"}
