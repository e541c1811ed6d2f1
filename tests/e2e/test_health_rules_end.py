"""Each rule of health becomes true and false again, in the overview, the metrics and the probe alike."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from bson import ObjectId

from beat_schedule import SYSTEMS
from dev.servers import Mongo, Valkey
from models import job, outbox, scan_run, schema, site, subscription, support_room
from models.database import collection, server_now
from queue_manager import leases
from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.beat.status import OLD_LEADER_LOCK
from queue_manager.broker import dead_letters
from queue_manager.core.clock import hours, milliseconds, minutes
from queue_manager.core.redis_client import connect
from queue_manager.health_rules import Rule
from queue_manager.items import DueItem
from queue_manager.telemetry import worker_heartbeats
from services import job_queues
from services.due_documents import work_of
from services.support_snooze import system as support_snooze
from tests.e2e.celery_processes import ROOT, TESTS
from tests.e2e.health_command import (
    LOOKS,
    QUEUES,
    RUN,
    full_memory,
    lead,
    locked_mongodb,
    overview_problems,
    run_scans,
    taken_room,
)
from tests.eventually import eventually
from tests.foreign_jobs import add_foreign_jobs
from tests.job_lab import Lab
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.web_process import Web, web

pytestmark = pytest.mark.processes

FLAGS = ("QM_CONVERSATIONS", "QM_PROJECTS", "QM_SITES_FIX_STALE_THUMBNAILS", "QM_MESSAGE_QUEUE", "QM_JOBS")
SLOW = {"QM_SNOOZE_SCAN_SECONDS": "60", "JOBS_TIMER_MS": "60000", "OVERDUE_CHECK_INTERVAL_MS": "60000"}
"""Late is later than three minutes: a test is over before."""
ENV = {**dict.fromkeys(FLAGS, "true"), **SLOW}
WORKER = "worker@here"


@pytest.fixture(scope="module")
def queue_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("queue")) as server:
        yield server


@pytest.fixture(scope="module")
def process(servers: Servers, queue_server: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with web(tmp_path_factory.mktemp("web"), QM_QUEUE_REDIS_URL=queue_server.url, **ENV) as process:
        yield process


@pytest.fixture
def well(clean: Servers) -> Servers:
    """A beat has led for hours, each scan has just run, and there is a worker on every queue."""
    lead(clean, since=hours(5))
    run_scans()
    show_worker(clean)
    return clean


def show_worker(servers: Servers, *, without: str | None = None, paused: str | None = None) -> None:
    """Let a worker be online until a test is over, as if its heartbeats came from the future."""
    worker_heartbeats.record(WORKER, [queue for queue in QUEUES if queue != without], paused=paused)
    with connect(servers.valkey.url) as client:
        later = client.time()[0] * 1000 + milliseconds(minutes(10))
        client.zadd(
            worker_heartbeats.WORKERS_KEY, dict.fromkeys(client.zrange(worker_heartbeats.WORKERS_KEY, 0, -1), later)
        )


# Each causes a problem, and solves it after `yield`

Cause = Callable[[Servers, Web, Valkey], AbstractContextManager[None]]
CAUSES: dict[tuple[str, Rule], tuple[Cause, str]] = {}
ID = "[0-9a-f]{24}"


def causes(system: str, rule: Rule, text: str) -> Callable[[Callable[[Servers, Web, Valkey], Iterator[None]]], None]:
    """Register what causes only this problem, whose text matches the regular expression `text`."""

    def register(act: Callable[[Servers, Web, Valkey], Iterator[None]]) -> None:
        CAUSES[system, rule] = contextmanager(act), text

    return register


def wake(item: DueItem) -> None:
    """Do what a worker does with the item of a room."""
    work = work_of(support_snooze)
    with work.attempt(item) as attempts:
        assert work.execute(*item.args, task_id=item.task_id)["success"]
        attempts.done.add(item.lease)


@causes("support-snooze", Rule.LAG, rf"The oldest due item has waited \d+ min, more than 3 min \({ID}\)")
def a_room_is_not_opened(*_: object) -> Iterator[None]:
    room = taken_room(due_ago=334)
    yield
    wake(room)


@causes("support-snooze", Rule.STUCK_ITEMS, rf"1 stuck room: due, but the worker's lease ended .* \({ID}\)")
def a_worker_that_took_a_room_is_gone(servers: Servers, *_: object) -> Iterator[None]:
    room = taken_room(due_ago=5)
    with connect(servers.valkey.url) as client:
        client.zadd("qm:lease:support-snooze:running", {room.lease: (client.time()[0] - 190) * 1000})
    yield
    wake(room)


@causes("support-snooze", Rule.FAILED_ITEMS, rf"1 failed room: every attempt .* \({ID}\)")
def every_attempt_at_a_room_failed(*_: object) -> Iterator[None]:
    room = taken_room(due_ago=5)
    work_of(support_snooze).give_up(room, error="boom")
    yield
    wake(room)


@causes("support-snooze", Rule.FAILING_CALLS, "1 call of `after`, .* without success for more than 3 min; .*")
def every_call_after_a_write_failed(*_: object) -> Iterator[None]:
    written = server_now() - minutes(10)
    calls = collection(outbox.OUTBOX_COLLECTION)
    calls.insert_one({"_id": "failing", "system": "support-snooze", "at": written, "items": []})
    later = {"_id": "postponed", "system": "support-snooze", "at": written, "items": []}
    calls.insert_one({**later, "postponed_until": server_now() + minutes(10)})
    yield
    calls.delete_one({"_id": "failing"})


@causes("support-snooze", Rule.LOST_ITEMS, rf"The process .* at least 3 times in a row in 1 item \({ID}\)")
def a_room_kills_its_process(servers: Servers, *_: object) -> Iterator[None]:
    room = taken_room(due_ago=5)
    with connect(servers.valkey.url) as client:
        now = client.time()[0] * 1000
        long_ago = now - milliseconds(minutes(10))
        losses = {
            room.lease: f"3:{now}",
            leases.name("lost-twice", None): f"2:{now}",
            leases.name("removed", None): f"3:{long_ago}",  # a scan has run since its cool-down
        }
        client.hset("qm:lease:support-snooze:losses", mapping=losses)
    yield
    wake(room)


@causes("support-snooze", Rule.UNREADABLE_DOCUMENTS, rf"1 room with a malformed snooze_time.*: {ID}")
def a_snooze_time_is_malformed(*_: object) -> Iterator[None]:
    room = make_room(snooze_time="tomorrow")
    yield
    tomorrow = {"snooze_time": {"time": server_now() + hours(24)}}
    support_room.rooms().update_one({"_id": room}, {"$set": tomorrow})


@causes("review-requests", Rule.UNREADABLE_DOCUMENTS, rf"1 subscription without a readable created_at: {ID}")
def the_date_of_a_subscription_is_malformed(*_: object) -> Iterator[None]:
    subscriptions, plan = subscription.subscriptions(), {"metadata": {"product_type": "seo"}}
    stored = {"account": 1, "status": "active", "plan": plan, "created_at": "?"}
    subscriptions.insert_one(stored)
    yield
    subscriptions.update_one({"_id": stored["_id"]}, {"$set": {"created_at": server_now()}})


@causes("stale-thumbnails", Rule.FAILED_ITEMS, rf"1 failed site: the reset failed .* \(instasites {ID}\)")
def a_site_could_not_be_reset(*_: object) -> Iterator[None]:
    began = server_now() - minutes(125)
    building = {"status": "PUBLISHED", "thumbnail_build_in_progress": True, "thumbnail_process_started_at": began}
    hanging = collection("instasites").insert_one(building).inserted_id
    healed = collection("instasites").insert_one({"status": "PUBLISHED"}).inserted_id
    for one in (hanging, healed):
        site.record_outcome(f"run-{one}", "instasites", str(one), "failed", now=server_now(), error="boom")
    yield
    assert site.INSTASITES.reset(hanging, began)


@causes("stale-thumbnails", Rule.REPEATED_RESETS, rf"1 stuck site: reset 5 times .* \(instasites {ID} 5 times\)")
def a_site_hangs_after_each_reset(*_: object) -> Iterator[None]:
    building = {"status": "PUBLISHED", "thumbnail_build_in_progress": True, "thumbnail_reset_count": 5}
    began = server_now()
    hanging = {**building, "thumbnail_process_started_at": began}
    collection("instasites").insert_one(hanging)
    yield
    built = {"details.thumbnails.desktop": "desktop.png"}
    collection("instasites").update_one({"_id": hanging["_id"]}, {"$set": built})
    assert site.INSTASITES.reset(hanging["_id"], began) == 0


def fail() -> None:
    raise ValueError("no such address")


@causes("job-queues", Rule.FAILING_JOBS, r"1 failing job: mail \(1\)")
def a_job_fails(*_: object) -> Iterator[None]:
    lab = Lab(server_now)
    lab.works = {"mail": lambda *_, run: fail()}
    id = lab.run("mail")
    lab.run_through("mail")
    yield
    lab.works = {}
    lab.jobs.retry(id)
    lab.run_through("mail")


@causes("job-queues", Rule.LOST_JOBS, rf"1 executing job whose lease ended .* \(mail {ID}\)")
def the_worker_of_a_job_is_gone(*_: object) -> Iterator[None]:
    lab = Lab(server_now)
    id = lab.run("mail")
    lab.executing(id)
    job.jobs().update_one({"_id": ObjectId(id)}, {"$set": {"claim.claimed_until": server_now() - minutes(4)}})
    yield
    lab.serve()


@causes("job-queues", Rule.LAG, r"The oldest due item has waited \d+ min, more than 3 min \(mail\)")
def a_job_is_not_started(*_: object) -> Iterator[None]:
    lab = Lab(server_now)
    id, long_ago = lab.run("mail"), server_now() - minutes(5)
    job.jobs().update_one({"_id": ObjectId(id)}, {"$set": {"waiting": long_ago, "due": long_ago}})
    yield
    lab.serve()


@causes("job-queues", Rule.STUCK_ITEMS, r"1 stuck job queue: due, but the worker's lease ended .* \(mail\)")
def a_worker_that_took_a_queue_is_gone(servers: Servers, *_: object) -> Iterator[None]:
    lab = Lab(server_now)
    lab.run("mail")
    work, ([queue], _counts) = lab.dispatching(), lab.dispatch()
    work.renew([queue])
    with connect(servers.valkey.url) as client:
        client.zadd(work.leases.keys.running, {queue.lease: (client.time()[0] - 190) * 1000})
    yield
    lab.run_through("mail")


@causes("job-queues", Rule.FAILED_ITEMS, r"1 failed job queue: every attempt .* \(mail\)")
def every_attempt_to_run_a_queue_failed(*_: object) -> Iterator[None]:
    lab = Lab(server_now)
    lab.run("mail")
    [queue], _counts = lab.dispatch()
    lab.dispatching().give_up(queue, error="boom")
    yield
    lab.run_through("mail")


@causes("job-queues", Rule.UNADOPTED_JOBS, r"9 unfinished documents of another program .* and 4 more\)")
def another_program_stored_jobs(*_: object) -> Iterator[None]:
    add_foreign_jobs("mail", server_now())
    yield
    rejected = job_queues.adopt(is_dry_run=False).rejected
    assert job.jobs().delete_many({"attempts": {"$exists": False}}).deleted_count == rejected > 0
    for state in ("failure", "pending"):  # those that were adopted are jobs like any other
        job_queues.jobs.clear([state])


@causes("overdue-messages", Rule.DEAD_MESSAGES, r"1 dead letter in the message queue: used all attempts .* \(a\)")
def a_message_uses_all_its_attempts(_servers: Servers, process: Web, _queue: Valkey) -> Iterator[None]:
    sent = '{"id": "a", "type": "mail", "payload": {}, "maxAttempts": 1}'
    assert process.post("/api/queue/message", sent, Content_Type="application/json").status == 201
    taken = process.get("/api/queue/message").body
    nacked = f'{{"lock_token": "{taken["lock_token"]}"}}'
    assert process.post("/api/queue/message/a/nack", nacked, Content_Type="application/json").status == 200
    yield
    assert process.post("/api/queue/replay", '{"messageIds": ["a"]}', Content_Type="application/json").status == 200
    assert process.ask("DELETE", "/api/queue/clear").status == 200


@causes("overdue-messages", Rule.UNKNOWN_STATE, r"The queue's server at redis://\S+ does not answer \(.*\)")
def the_server_of_the_message_queue_is_away(_servers: Servers, _process: Web, queue: Valkey) -> Iterator[None]:
    queue.kill()
    try:
        yield
    finally:
        queue.start()


@causes(
    "overdue-messages",
    Rule.REFUSED_WRITES,
    r"The queue's server at redis://\S+ refuses writes \(command not allowed .*\)",
)
def memory_of_the_message_queue_is_full(_servers: Servers, _process: Web, queue: Valkey) -> Iterator[None]:
    with full_memory(queue.url):
        yield


@causes("broker", Rule.DEAD_LETTERS, "1 Celery message could not be decoded or dispatched")
def a_broker_message_cannot_be_read(servers: Servers, *_: object) -> Iterator[None]:
    with connect(servers.valkey.url) as client:
        client.lpush(dead_letters.DEAD_LETTERS, '{"at": 1, "queue": "scans", "reason": "r", "message": "m"}')
        yield
        assert list(dead_letters.clear(client)) == [1]


def record_scan(errors: int = 0, error: str | None = None) -> None:
    scan_run.record(support_snooze.scan_task, {**RUN, "errors": errors}, error=error, now=server_now())


@causes("support-snooze", Rule.LATE_SCAN, r"The scan is late: it last ran at \S+ UTC")
def a_scan_does_not_run(*_: object) -> Iterator[None]:
    ago = {"at": server_now() - minutes(10)}
    collection(scan_run.RUNS_COLLECTION).update_many({"scan": support_snooze.scan_task}, {"$set": ago})
    yield
    record_scan()


@causes("support-snooze", Rule.SCAN_ERRORS, "The last scan had 2 errors: boom")
def a_scan_has_errors(*_: object) -> Iterator[None]:
    record_scan(errors=2, error="boom")
    yield
    record_scan()


@causes("support-snooze", Rule.MISSING_INDEXES, r"Missing in MongoDB: support_rooms\.qm_due_.*")
def an_index_of_a_system_is_dropped(*_: object) -> Iterator[None]:
    for name, indexes in support_snooze.collections().items():
        for index in indexes:
            collection(name).drop_index(index.document["name"])
    yield
    schema.migrate(SYSTEMS)


@causes("mongodb", Rule.MISSING_INDEXES, r"Missing in MongoDB: scan_runs\.last_runs_of_a_scan, .*")
def an_index_of_all_systems_is_dropped(*_: object) -> Iterator[None]:
    collection(scan_run.RUNS_COLLECTION).drop_indexes()
    yield
    schema.migrate(SYSTEMS)


@causes("beat", Rule.NO_LEADER, "No beat is the leader, so no scans run")
def no_beat_leads(servers: Servers, *_: object) -> Iterator[None]:
    with connect(servers.valkey.url) as client:
        client.delete(LEADER_LOCK)
    yield
    lead(servers, since=hours(5))


@causes("beat", Rule.OLD_LEADER, r"A beat of release 0\.1 leads \(h:1\), and newer ones stand by")
def a_beat_of_release_0_1_leads(servers: Servers, *_: object) -> Iterator[None]:
    with connect(servers.valkey.url) as client:
        client.rename(LEADER_LOCK, OLD_LEADER_LOCK)
        yield
        client.rename(OLD_LEADER_LOCK, LEADER_LOCK)


@causes("workers", Rule.NO_WORKERS, "No worker is online .* queues scans, support-snooze, .*, jobs")
def the_last_worker_ends(servers: Servers, *_: object) -> Iterator[None]:
    worker_heartbeats.remove(WORKER)
    yield
    show_worker(servers)


@causes("workers", Rule.PAUSED_WORKERS, "1 of 1 worker cannot reach MongoDB .*: worker@here: MongoDB does not answer")
def a_worker_is_cut_off_from_mongodb(servers: Servers, *_: object) -> Iterator[None]:
    show_worker(servers, paused="MongoDB does not answer")
    yield
    show_worker(servers)


@causes("workers", Rule.QUEUE_WITHOUT_WORKER, "No worker consumes the queue scans, so no scan runs")
def no_worker_scans(servers: Servers, *_: object) -> Iterator[None]:
    show_worker(servers, without="scans")
    yield
    show_worker(servers)


@causes(
    "support-snooze",
    Rule.QUEUE_WITHOUT_WORKER,
    "No worker consumes the queue support-snooze, so its items are not handled",
)
def no_worker_opens_rooms(servers: Servers, *_: object) -> Iterator[None]:
    show_worker(servers, without="support-snooze")
    yield
    show_worker(servers)


@causes("redis", Rule.SERVER_UNSUITABLE, r"Redis at redis://\S+ has maxmemory-policy 'allkeys-lru' .*")
def redis_may_evict_keys(servers: Servers, *_: object) -> Iterator[None]:
    with connect(servers.valkey.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            yield
        finally:
            client.config_set("maxmemory-policy", "noeviction")


@causes("redis", Rule.REFUSED_WRITES, r"Redis at redis://\S+ refuses writes \(command not allowed .*\)")
def memory_of_redis_is_full(servers: Servers, *_: object) -> Iterator[None]:
    with full_memory(servers.valkey.url):
        yield


@causes("mongodb", Rule.REFUSED_WRITES, r"MongoDB did not confirm a write within 2\.5 s")
def mongodb_confirms_no_writes(servers: Servers, *_: object) -> Iterator[None]:
    with locked_mongodb(servers.mongo.url):
        yield


@pytest.mark.parametrize(("system", "rule"), CAUSES, ids=lambda one: one.id if isinstance(one, Rule) else one)
def test_problem_is_shown_everywhere_until_its_cause_is_gone(
    system: str, rule: Rule, well: Servers, process: Web, queue_server: Valkey
) -> None:
    cause, text = CAUSES[system, rule]
    shown = (system, rule.id)
    for look in LOOKS:
        eventually(lambda look=look: look(process) == [])
    with cause(well, process, queue_server):
        for look in LOOKS:
            eventually(lambda look=look: shown in look(process))
        (problem,) = overview_problems(process)
        assert re.fullmatch(text, problem["text"])
        eventually(lambda: process.get("/readyz").status == (503 if rule in UNREADY else 200))
    for look in LOOKS:
        eventually(lambda look=look: look(process) == [])


UNREADY = {Rule.UNKNOWN_STATE, Rule.REFUSED_WRITES}
"""Problems for which the readiness probe takes a web process out of service."""
SHOWN_ELSEWHERE = {Rule.SERVER_AWAY, Rule.CLOCKS_APART, Rule.SETTINGS_WARNING}
"""The tests below, and for the settings, which a process reads once, in `test_health_rules.py`."""


def test_every_rule_has_a_test() -> None:
    assert {rule for _, rule in CAUSES} | SHOWN_ELSEWHERE == {*Rule}


def test_unavailable_server_is_a_problem_until_it_is_back(tmp_path: Path) -> None:
    names = ("mongodb", "redis", "broker")
    with Mongo(tmp_path / "mongo") as mongo, Valkey(tmp_path / "redis") as main, Valkey(tmp_path / "broker") as broker:
        env = {"MONGO_DB_URL": mongo.url, "REDIS_URL": main.url, "BROKER_URL": broker.url}
        with web(tmp_path, **env) as process:
            for name, server in zip(names, (mongo, main, broker), strict=True):
                server.kill()
                for look in LOOKS:
                    eventually(lambda look=look, name=name: (name, "server-away") in look(process))
                server.start()
                for look in LOOKS:
                    eventually(lambda look=look: not any("server-away" in one for one in look(process)))


def test_wrong_clock_is_a_problem_until_it_is_set(well: Servers, tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("d", 0.0))
    path = f"{TESTS / 'shifted_clock'}:{ROOT}"
    with web(tmp_path, PYTHONPATH=path, SHIFTED_CLOCK_FILE=str(clock), **SLOW) as process:
        for off in (0.0, 3600.0, 0.0, -3600.0, 0.0):
            with clock.open("r+b") as file:
                file.write(struct.pack("d", off))
            shown = [("clocks", "clocks-apart")] if off else []
            for look in LOOKS:
                eventually(lambda look=look, shown=shown: look(process) == shown)
