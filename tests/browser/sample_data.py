"""Something of everything for pages to show: items in every state, messages in every state, jobs, scans, a leader."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId

from models import scan_run, site, subscription
from models.database import collection, server_now
from models.job import JobState
from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.beat.status import SCHEDULE_KEY
from queue_manager.broker.keys import SCHEDULE_PREFIX
from queue_manager.core.clock import hours, seconds
from queue_manager.core.redis_client import connect
from queue_manager.items import DueItem
from queue_manager.telemetry import worker_heartbeats
from queue_manager.telemetry.worker_heartbeats import Activity, PoolProcess, RunningTask
from tests.any_jobs import INVOICE, PARCEL, REPORT
from tests.eventually import eventually
from tests.job_lab import end_job, start_job
from tests.rooms import lose, make_room, make_work, scan
from tests.web.queue_client import Queue

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
ROOM_SCAN = "tasks.support_snooze.scan_expired_snoozes"
UNSNOOZE = "tasks.support_snooze.unsnooze_room"
WORKER, A_ROOM = "worker@a-host", "5f" * 12
REASON = "Boom: the socket broke while it told its listeners of it. " * 6


def wait_until_shown(queue: Queue) -> None:
    """Wait until the overview has read the sample data: for a moment, it answers what it read before."""

    def is_shown() -> bool:
        overview = queue.get("/overview").body
        due = {system["name"]: system["due"] for system in overview["systems"]}
        return bool(overview["leader"] and due["review-requests"])

    eventually(is_shown)


def rooms(reason: str = REASON) -> dict[str, str]:
    """Return the ids of a room in each state."""
    work, now = make_work(server_now), server_now()

    def dispatched(ago: float) -> DueItem:
        make_room(now - seconds(ago))
        (item,) = scan(work)
        return item

    stuck, failed, held = dispatched(400), dispatched(300), dispatched(200)
    lose(work, stuck, ago=seconds(30))
    work.give_up(failed, error=reason)
    due = make_room(now - seconds(100))
    return {"due": str(due), "in-progress": held.args[0], "stuck": stuck.args[0], "failed": failed.args[0]}


def sites() -> list[str]:
    """Return the ids of two sites whose thumbnails hang, the newer first: one failed before."""
    now = server_now()
    made = []
    for ago in (hours(28), hours(29)):  # shown with their date, at each time of the day
        building = {"thumbnail_build_in_progress": True, "thumbnail_process_started_at": now - ago}
        made.append(collection("instasites").insert_one({"status": "PUBLISHED", **building}).inserted_id)
    site.record_outcome("run", "instasites", str(made[1]), "failed", now=now, error=REASON)
    return [f"instasites:{one}" for one in made]


def agencies() -> list[str]:
    """Return the ids of two agencies that are to be asked, in the order of their list."""
    parents = [ObjectId(), ObjectId()]
    for parent in parents:
        plan = {"metadata": {"product_type": "seo"}}
        given: dict[str, Any] = {"account": parent, "status": "active", "created_at": LONG_AGO, "plan": plan}
        subscription.subscriptions().insert_one({**given, "metadata": {"account_id": ObjectId()}})
    return sorted(map(str, parents), reverse=True)


def messages(queue: Queue) -> dict[str, str]:
    """Return the ids of a message in each state."""
    payload = {"to": "ada@example.org", "text": "word " * 60}
    dead = queue.dead(payload=payload)
    acknowledged, archived = queue.add(payload=payload), queue.add(payload=payload)
    taken = queue.take()
    queue.post("/queue/ack", {"id": taken["id"], "lock_token": taken["lock_token"]})
    queue.post("/queue/move", {"messages": [archived], "toQueue": "archived"})
    processing = queue.add(payload=payload, ackTimeout=900)
    assert queue.take("consumerId=a-consumer")["id"] == processing
    main = queue.add(type="letter", payload=payload)
    return {
        "main": main,
        "processing": processing,
        "dead": dead,
        "acknowledged": acknowledged,
        "archived": archived,
    }


def make_job(
    queue: Queue, name: str = INVOICE, *arguments: Any, state: JobState = JobState.PENDING, **options: Any
) -> str:
    """Store a job, let it end in `state`, and return its id."""
    answer = queue.post("/jobs", {"name": name, "arguments": list(arguments), **options})
    assert answer.status == 201, answer.text
    id = str(answer.body["job"]["_id"])
    if state is JobState.EXECUTING:
        start_job(id, lease=seconds(900))
    elif state is not JobState.PENDING:
        end_job(id, state, backoff=hours(1) if state is JobState.FAILURE else None, error=REASON)
    return id


def jobs(queue: Queue) -> dict[JobState, str]:
    """Return the ids of a job in each state."""
    names = (INVOICE, REPORT, PARCEL, INVOICE, INVOICE)
    return {
        state: make_job(queue, name, 7, "word " * 60, state=state) for state, name in zip(JobState, names, strict=True)
    }


def scans(error: str = REASON) -> None:
    """Note runs of the scan of rooms, the latest with an error."""
    run = {"found": 3, "claimed": 2, "enqueued": 2, "errors": 0, "duration_ms": 40, "requeued": 1}
    for ago, failed in ((30, None), (20, None), (10, error)):
        scan_run.record(
            ROOM_SCAN, {**run, "errors": int(failed is not None)}, error=failed, now=server_now() - seconds(ago)
        )


def lead(redis_url: str) -> None:
    """Do what a beat does that leads."""
    with connect(redis_url) as client:
        since = {"since_ms": "1767225600000", "epoch": "7"}
        client.hset(LEADER_LOCK, mapping={"token": "t", "host": "a-host", "pid": "1", **since})
        client.pexpire(LEADER_LOCK, 600_000)
        at = client.time()[0] + 300
        client.zadd(SCHEDULE_KEY, {f"{SCHEDULE_PREFIX}support-snooze": at})


def workers(redis_url: str, **about: Any) -> None:
    """Show a worker that executes an item, a batch and a task of another program."""

    def process(pid: int, *running: RunningTask) -> PoolProcess:
        return PoolProcess(pid=pid, memory_bytes=52_000_000, running=list(running))

    item = RunningTask(task=UNSNOOZE, id="t-1", item=A_ROOM, elapsed_ms=300_000)
    batch = RunningTask(task=UNSNOOZE, id="t-2", tasks=1_000, elapsed_ms=20)
    other = RunningTask(task="billing.send_mail", id="t-3", elapsed_ms=0)
    activity = Activity(
        pool="prefork",
        size=4,
        busy=3,
        done_per_minute=1_234,
        memory_bytes=81_000_000,
        processes=[process(101, item), process(102, batch), process(103, other), process(104)],
    )
    heartbeat(redis_url, activity, "scans", "support-snooze", **about)


def heartbeat(redis_url: str, activity: Activity, *queues: str, **about: Any) -> None:
    """Record a heartbeat of a worker, which stays online for an hour."""
    worker_heartbeats.record(WORKER, queues, activity=activity, **about)
    with connect(redis_url) as client:
        client.zincrby(worker_heartbeats.WORKERS_KEY, 3_600_000, f"{WORKER} {os.getpid()}")


def everything(queue: Queue, redis_url: str) -> dict[str, str]:
    """Furnish every page; return the ids of the messages by their places."""
    rooms()
    sites()
    agencies()
    jobs(queue)
    scans()
    lead(redis_url)
    workers(redis_url)
    return messages(queue)
