"""`queue-manager health` names each problem and exits with 1; a system that is starting is not a problem."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from bson import ObjectId

from beat_schedule import SYSTEMS
from dev.ports import LOOPBACK, free_port
from dev.servers import DATABASE, Valkey
from models import job, scan_run
from models.database import collection, server_now
from queue_manager import leases
from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.broker.dead_letters import DEAD_LETTERS
from queue_manager.core.clock import hours, milliseconds, minutes, seconds, to_iso
from queue_manager.core.redis_client import connect
from queue_manager.health_rules import Rule
from queue_manager.items import DueItem
from queue_manager.pauses import PAUSES_KEY
from queue_manager.telemetry import worker_heartbeats
from services.due_documents import work_of
from services.message_queue import message_queue
from services.stale_thumbnails import system as stale_thumbnails
from services.support_snooze import system as support_snooze
from tests.docs.transcript import Transcript
from tests.documented import DOCS, block
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.commands import invoke, queue_manager
from tests.e2e.health_command import (
    QUEUES,
    RUN,
    SLOW,
    Answer,
    full_memory,
    health,
    lead,
    locked_mongodb,
    repeated,
    said,
    show_worker,
    taken_room,
)
from tests.eventually import eventually
from tests.job_lab import Lab
from tests.real_servers import Servers
from tests.rooms import make_room

pytestmark = pytest.mark.processes


def lose(item: DueItem, clean: Servers, *, ago: float) -> None:
    """Let the lease have ended so many seconds ago."""
    with redis.Redis.from_url(clean.valkey.url) as client:
        client.zadd("qm:lease:support-snooze:running", {item.lease: client.time()[0] * 1000 - ago * 1000})


def test_health_exits_with_0_if_nothing_is_wrong(well: Servers, tmp_path: Path) -> None:
    make_room(server_now() - seconds(5))
    answer = health(tmp_path, QM_JOBS="true", QM_MESSAGE_QUEUE="true", **SLOW)
    assert (answer.exit_code, answer.problems, answer.state["details"]) == (0, [], [])
    assert said(tmp_path, QM_JOBS="true", QM_MESSAGE_QUEUE="true", **SLOW).endswith("no problems\n")


def test_text_of_applications_reaches_the_terminal_without_control_characters_and_markup(
    well: Servers, tmp_path: Path
) -> None:
    run = {"found": 0, "claimed": 0, "enqueued": 0, "errors": 1, "duration_ms": 1}
    scan_run.record(support_snooze.scan_task, run, error="\x1b[31m [/red]\nno problems", now=server_now() + seconds(30))
    shown = queue_manager("health", cwd=tmp_path)
    assert "Traceback" not in shown.stderr
    assert "error \\x1b[31m [/red]\\nno problems" in shown.stdout


# Items


def test_stuck_items_are_named_except_those_the_next_scan_takes(well: Servers, tmp_path: Path) -> None:
    stuck, lost_just_now = taken_room(due_ago=300), taken_room(due_ago=250)
    lose(stuck, well, ago=190)
    lose(lost_just_now, well, ago=1)
    answer = health(tmp_path, **SLOW)
    (problem,) = [one for one in answer.problems if "stuck" in one]
    assert answer.exit_code == 1
    assert problem.startswith("1 stuck room:")
    assert stuck.args[0] in problem
    assert lost_just_now.args[0] not in problem


def test_failed_items_are_named_up_to_five(well: Servers, tmp_path: Path) -> None:
    failed = [taken_room(due_ago=5) for _ in range(7)]
    for item in failed:
        work_of(support_snooze).give_up(item, error="boom")
    problem = health(tmp_path, **SLOW).only_problem("support-snooze", Rule.FAILED_ITEMS)
    assert problem.startswith("7 failed rooms:")
    assert sum(item.args[0] in problem for item in failed) == 5
    assert problem.endswith("and 2 more)")


def test_sites_that_hang_after_each_reset_are_one_problem(well: Servers, tmp_path: Path) -> None:
    building = {"thumbnail_build_in_progress": True, "thumbnail_process_started_at": server_now()}
    for _ in range(7):
        collection("instasites").insert_one({"status": "PUBLISHED", "thumbnail_reset_count": 6, **building})
    env = {"QM_SITES_FIX_STALE_THUMBNAILS": "true", "QM_CONVERSATIONS": "false"}
    problem = health(tmp_path, **env).only_problem("stale-thumbnails", Rule.REPEATED_RESETS)
    assert problem.startswith("7 stuck sites: reset 5 times in a row or more")
    assert problem.endswith("and 2 more)")


@pytest.mark.parametrize(
    ("run", "env", "is_named"),
    [
        ({}, {}, False),
        ({"paused": 1}, {}, True),
        ({"errors": 1}, {}, True),
        ({}, {"QM_DRY_RUN": '["support-snooze"]'}, True),
    ],
)
def test_an_item_that_killed_its_process_is_named_until_a_scan_could_take_it(
    run: dict[str, int], env: dict[str, str], is_named: bool, clean: Servers, tmp_path: Path
) -> None:
    lead(clean, since=hours(5))
    with connect(clean.valkey.url) as client:
        long_ago = client.time()[0] * 1000 - milliseconds(minutes(10))
        client.hset("qm:lease:support-snooze:losses", leases.name("killer", None), f"3:{long_ago}")
    scan_run.record(support_snooze.scan_task, {**RUN, **run}, error=None, now=server_now())
    with repeated(show_worker):
        assert (("support-snooze", "lost-items") in health(tmp_path, **SLOW, **env).ids) == is_named


# Jobs

JOBS = {"QM_JOBS": "true", "QM_CONVERSATIONS": "false", **SLOW}


def fail(name: str) -> Any:
    raise ValueError(name)


def test_failing_jobs_are_counted_by_name(well: Servers, tmp_path: Path) -> None:
    lab = Lab(server_now)
    lab.works = {"mail": lambda *_, run: fail("mail"), "report": lambda good, run: good or fail("report")}
    for name, good in (("mail", False), ("mail", False), ("mail", False), ("report", False), ("report", True)):
        lab.run(name, good)
    lab.run_through("mail")
    lab.run_through("report")
    answer = health(tmp_path, **JOBS)
    problem = answer.only_problem("job-queues", Rule.FAILING_JOBS)
    assert problem == "4 failing jobs: mail (3), report (1)"
    assert answer.state["systems"]["job-queues"]["failed"] == 4


def test_a_long_running_job_is_a_detail_with_its_worker(well: Servers, tmp_path: Path) -> None:
    lab = Lab(server_now)
    seen: list[Answer] = []

    def look(*_: Any, run: Any) -> None:
        job.jobs().update_one({"_id": ObjectId(run.id)}, {"$set": {"updated": server_now() - minutes(90)}})
        seen.append(health(tmp_path, **JOBS))

    lab.works = {"mail": look}
    id = lab.run("mail", at=server_now() - hours(2))
    lab.run("mail", "waits for its turn", at=server_now() - hours(1))
    lab.run_through("mail")
    answer = seen[0]
    assert answer.problems == []
    (detail,) = answer.state["details"]
    assert detail.startswith(f"job-queues: mail: the job {id} has been executing for 90 min on ")
    assert detail.endswith(f":{os.getpid()}")


def test_a_due_job_that_is_not_started_is_a_problem_unless_its_queue_is_paused(well: Servers, tmp_path: Path) -> None:
    lab = Lab(server_now)
    id = lab.run("mail")
    long_ago = server_now() - minutes(5)
    job.jobs().update_one({"_id": ObjectId(id)}, {"$set": {"waiting": long_ago, "due": long_ago}})
    problem = health(tmp_path, **JOBS).only_problem("job-queues", Rule.LAG)
    assert problem.startswith("The oldest due item has waited 5 min")
    assert problem.endswith("(mail)")
    lab.jobs.pause(["mail"], by="alice", reason="the provider is down")
    answer = health(tmp_path, **JOBS)
    assert answer.problems == []
    (detail,) = answer.state["details"]
    assert detail.startswith("job-queues: paused: mail since ")
    assert detail.endswith(" by alice: the provider is down")


# Messages


def test_overdue_messages_that_are_not_swept_are_a_problem(well: Servers, tmp_path: Path) -> None:
    queue = message_queue()
    id = queue.enqueue("mail", {}, ack_timeout=0.1)
    assert queue.dequeue(timeout=0) is not None
    env = {"QM_MESSAGE_QUEUE": "true", "QM_CONVERSATIONS": "false", "OVERDUE_CHECK_INTERVAL_MS": "100"}
    answer = eventually(lambda: found if (found := health(tmp_path, **env)).problems else None)
    problem = answer.only_problem("overdue-messages", Rule.LAG)
    assert problem.startswith("The oldest due item has waited")
    assert problem.endswith(f"({id})")


# Processes


@pytest.mark.parametrize(
    ("option", "unconsumed"),
    [("--queues=scans,jobs", ["support-snooze"]), ("--exclude-queues=scans,jobs", ["scans", "jobs"])],
)
def test_a_queue_that_no_worker_consumes_is_a_problem(
    option: str, unconsumed: list[str], scanned: Servers, tmp_path: Path
) -> None:
    with worker(tmp_path / "worker.log", option), connect(scanned.valkey.url) as client:
        eventually(lambda: worker_heartbeats.online(client))
        problems = health(tmp_path, QM_JOBS="true").problems
    assert [problem.split(",")[0] for problem in problems] == [
        f"No worker consumes the queue {queue}" for queue in unconsumed
    ]


def test_a_worker_without_known_queues_causes_no_problem(scanned: Servers, tmp_path: Path) -> None:
    with repeated(lambda: worker_heartbeats.record("older@here")):
        answer = health(tmp_path)
    assert (answer.exit_code, answer.problems) == (0, [])


# Starting


def test_a_first_start_is_not_a_problem(clean: Servers, tmp_path: Path) -> None:
    lead(clean, since=seconds(0))
    answer = health(tmp_path, QM_SITES_FIX_STALE_THUMBNAILS="true", **SLOW)
    assert (answer.exit_code, answer.problems) == (0, [])
    assert len([detail for detail in answer.state["details"] if "starting" in detail]) == 2


@pytest.mark.parametrize(
    ("name", "since", "is_late"),
    [
        ("support-snooze", minutes(1), False),
        ("support-snooze", minutes(10), True),
        ("stale-thumbnails", minutes(59), False),
        ("stale-thumbnails", hours(2), False),
        ("stale-thumbnails", hours(4), True),
    ],
)
def test_a_scan_is_late_after_three_periods_of_a_leader(
    name: str, since: timedelta, is_late: bool, clean: Servers, tmp_path: Path
) -> None:
    lead(clean, since=since)
    is_room = name == "support-snooze"
    flags = {"QM_CONVERSATIONS": str(is_room).lower(), "QM_SITES_FIX_STALE_THUMBNAILS": str(not is_room).lower()}
    with repeated(show_worker):
        answer = health(tmp_path, **SLOW, **flags)
    assert answer.ids == ([(name, "late-scan")] if is_late else [])


def test_scan_of_a_system_that_is_switched_on_again_is_soon_not_late(clean: Servers, tmp_path: Path) -> None:
    env = {"QM_CONVERSATIONS": "false", "QM_SITES_FIX_STALE_THUMBNAILS": "true"}  # a scan of every hour
    scan_run.record(stale_thumbnails.scan_task, RUN, error=None, now=server_now() - hours(4))

    with worker(tmp_path / "worker.log", env=env), CeleryProcess(tmp_path / "beat.log", "beat", env=env):
        eventually(lambda: health(tmp_path, **env).ids == [])


def test_setting_back_the_clock_of_redis_hides_no_problem(clean: Servers, tmp_path: Path) -> None:
    lead(clean, since=-hours(1))  # a beat that began to lead while it was ahead
    assert health(tmp_path).ids == [("workers", "no-workers"), ("support-snooze", "late-scan")]


def test_a_stopped_scan_is_late_without_a_leader_too(clean: Servers, tmp_path: Path) -> None:
    at, scan = server_now() - minutes(10), SYSTEMS[0].scan_task
    scan_run.record(scan, {**RUN, "stamped": 2}, error="boom", now=at)
    with repeated(show_worker):
        answer = health(tmp_path)
    assert answer.ids == [("beat", "no-leader"), ("support-snooze", "late-scan")]
    assert answer.state["scans"]["support-snooze"] == {
        "scan": scan,
        **RUN,
        "stamped": 2,
        "error": "boom",
        "at": to_iso(at),
    }
    assert answer.problems[0].startswith("No beat is the leader")


# Redis


def health_here() -> Answer:
    """Run the command in this process."""
    result = invoke("health", "--json")
    return Answer(result.returncode, json.loads(result.stdout))


@pytest.mark.smoke
def test_full_memory_is_reported_without_secondary_problems(scanned: Servers) -> None:
    with full_memory(scanned.valkey.url), repeated(show_worker):
        text = health_here().only_problem("redis", Rule.REFUSED_WRITES)
    assert "refuses writes (command not allowed when used memory > 'maxmemory'" in text


@pytest.fixture
def late(clean: Servers) -> Servers:
    """An outage has lasted: a beat leads, and no scan has run for ten minutes."""
    lead(clean, since=hours(5))
    for system in SYSTEMS:
        scan_run.record(system.scan_task, RUN, error=None, now=server_now() - minutes(10))
    return clean


def test_full_memory_that_lasts_is_reported_without_late_scans(late: Servers) -> None:
    with repeated(show_worker):
        assert health_here().ids == [("support-snooze", "late-scan")]
        with full_memory(late.valkey.url):
            health_here().only_problem("redis", Rule.REFUSED_WRITES)


def test_mongodb_that_confirms_no_writes_is_reported_without_late_scans(late: Servers, tmp_path: Path) -> None:
    with repeated(show_worker), locked_mongodb(late.mongo.url):
        health(tmp_path).only_problem("mongodb", Rule.REFUSED_WRITES)


def test_frozen_redis_is_reported_without_secondary_problems(late: Servers, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as frozen:
        os.kill(frozen.pid, signal.SIGSTOP)
        try:
            answer = health(tmp_path, REDIS_URL=frozen.url, QM_JOBS="true", QM_MESSAGE_QUEUE="true")
        finally:
            os.kill(frozen.pid, signal.SIGCONT)
    answer.only_problem("redis", Rule.SERVER_AWAY)


def test_workers_without_mongodb_are_no_problem_while_mongodb_is_away(scanned: Servers, tmp_path: Path) -> None:
    def pause() -> None:
        worker_heartbeats.record("worker@here", QUEUES, paused="MongoDB does not answer")

    with repeated(pause):
        health(tmp_path).only_problem("workers", Rule.PAUSED_WORKERS)
        away = f"mongodb://{LOOPBACK}:{free_port()}/{DATABASE}"
        health(tmp_path, MONGO_DB_URL=away).only_problem("mongodb", Rule.SERVER_AWAY)


def test_worker_that_ends_while_the_memory_is_full_is_offline(scanned: Servers) -> None:
    show_worker()
    with full_memory(scanned.valkey.url), connect(scanned.valkey.url) as client:
        worker_heartbeats.remove("worker@here")
        assert worker_heartbeats.online(client) == []


def test_broker_whose_memory_is_full_is_named(well: Servers, tmp_path: Path) -> None:
    with Valkey(tmp_path / "broker", config={"maxmemory": "1"}) as server:
        text = health(tmp_path, BROKER_URL=server.url, **SLOW).only_problem("broker", Rule.REFUSED_WRITES)
    assert text.startswith(f"The broker at {server.url} refuses writes (command not allowed")


@pytest.mark.parametrize("key", [PAUSES_KEY, LEADER_LOCK, "qm:lease:support-snooze:losses", DEAD_LETTERS])
def test_key_of_another_type_is_one_problem(key: str, well: Servers) -> None:
    with connect(well.valkey.url) as client:
        client.delete(key)
        client.set(key, "of another program")
    text = health_here().only_problem("redis", Rule.SERVER_UNSUITABLE)
    assert text.startswith(f"Redis at {well.valkey.url} refused a command (")
    assert "WRONGTYPE " in text
    assert text.endswith("; `queue-manager doctor` names the key)")


def test_credentials_that_redis_refuses_from_now_on_are_named(
    well: Servers, tmp_path: Path, change_settings: Callable[..., None]
) -> None:
    with Valkey(tmp_path / "valkey", config={"user": "app on >first ~* &* +@all"}) as server:
        change_settings(REDIS_URL=server.url.replace("://", "://app:first@"))
        assert ("redis", Rule.SERVER_UNSUITABLE) not in health_here().ids  # which is not checked again at once
        with connect(server.url) as client:
            client.execute_command("ACL", "SETUSER", "app", "resetpass", ">second")
            client.execute_command("CLIENT", "KILL", "USER", "app")
        assert "refuses our credentials" in health_here().only_problem("redis", Rule.SERVER_UNSUITABLE)


def test_a_problem_is_shown_as_in_the_documentation(well: Servers, tmp_path: Path) -> None:
    make_room(server_now() - minutes(6))
    run = queue_manager("health", cwd=tmp_path)
    assert run.returncode == 1
    assert Transcript().matches(block(0, heading="Health", page=DOCS / "how-to" / "monitor.md"), run.stdout)
