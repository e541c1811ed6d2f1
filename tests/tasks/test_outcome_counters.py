"""Outcomes of items and jobs are counted in total and by the minute, in one round trip."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import pytest
import redis

from dev.servers import Valkey
from models import outbox
from models.database import collection, server_now
from queue_manager.core.clock import hours, seconds
from queue_manager.core.errors import PermanentError
from queue_manager.core.redis_client import connect
from queue_manager.core.retry import RetryPolicy
from queue_manager.telemetry import counters
from services import job_queues
from services.job_queues import JobRun, runner
from tasks import job_queues as tasks
from tasks.job_queues import JOBS_QUEUE, dispatch_due_jobs
from tasks.stale_thumbnails import THUMBNAILS_QUEUE, log_resets, scan_stale_thumbnails
from tasks.support_snooze import scan_expired_snoozes, unsnooze_room
from tests.eventually import eventually
from tests.job_lab import LEASE, Lab
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.tasks.hand_worker import run, take, waiting_messages


def counted(servers: Servers, name: str) -> dict[str, int]:
    with connect(servers.valkey.url) as client:
        (recent,) = counters.recent(client, [counters.source(name)])
    return {outcome: recent.hour.get(outcome, 0) for outcome in counters.OUTCOMES}


def test_items_are_counted_by_outcome(clean: Servers) -> None:
    for _ in range(2):
        make_room(server_now() - seconds(1))
    scan_expired_snoozes()
    run(take(clean.valkey.url, "support-snooze"))
    run(take(clean.valkey.url, "support-snooze"))
    unsnooze_room.apply_async(["no id"])
    run(take(clean.valkey.url, "support-snooze"))
    assert counted(clean, "support-snooze") == {"done": 2, "failed": 1, "retried": 0}


def test_only_resets_of_sites_are_counted(clean: Servers) -> None:
    started = {"thumbnail_build_in_progress": True, "thumbnail_process_started_at": server_now() - hours(5)}
    collection("agency_websites").insert_many({"name": name, **started} for name in "ab")
    scan_stale_thumbnails()
    executed = []
    while waiting_messages(clean.valkey.url, THUMBNAILS_QUEUE):
        executed.append(message := take(clean.valkey.url, THUMBNAILS_QUEUE))
        run(message)
    assert log_resets.name in {message.task for message in executed}
    assert counted(clean, THUMBNAILS_QUEUE) == {"done": 2, "failed": 0, "retried": 0}


def test_repeated_calls_of_after_are_not_counted_as_items(clean: Servers) -> None:
    written: dict[str, list[Any]] = {"succeeds": [], "fails": ["malformed"]}
    for id, items in written.items():
        call = {"_id": id, "system": "support-snooze", "at": server_now() - hours(1), "items": items}
        collection(outbox.OUTBOX_COLLECTION).insert_one(call)
    scan_expired_snoozes()
    while waiting_messages(clean.valkey.url, "support-snooze"):
        run(take(clean.valkey.url, "support-snooze"))
    assert [one["_id"] for one in collection(outbox.OUTBOX_COLLECTION).find()] == ["fails"]
    assert counted(clean, "support-snooze") == {"done": 0, "failed": 0, "retried": 0}


def test_jobs_are_counted_and_not_the_runs_through_their_queue(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(server_now)
    monkeypatch.setattr(tasks, "registry", lab.registry)
    for _ in range(3):
        lab.run("mail")
    dispatch_due_jobs()
    run(take(clean.valkey.url, JOBS_QUEUE))
    assert counted(clean, job_queues.JOBS_INITIATOR) == {"done": 3, "failed": 0, "retried": 0}
    assert counted(clean, JOBS_QUEUE) == {"done": 0, "failed": 0, "retried": 0}


def test_jobs_are_counted_while_a_later_one_of_their_run_executes(
    clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, may_end = Lab(server_now), Event()
    monkeypatch.setattr(tasks, "registry", lab.registry)
    lab.works["mail"] = lambda number, run: may_end.wait(60) if number == 3 else None
    for number in (1, 2, 3):
        lab.run("mail", number)
    with ThreadPoolExecutor(1) as pool:
        run_of_three = pool.submit(tasks.run_jobs, "mail", None, token="t")
        try:
            eventually(lambda: counted(clean, job_queues.JOBS_INITIATOR)["done"] == 2)
        finally:
            may_end.set()
        assert run_of_three.result(60)["succeeded"] == 3
    assert counted(clean, job_queues.JOBS_INITIATOR) == {"done": 3, "failed": 0, "retried": 0}


def test_a_lost_job_is_counted_as_retried_unless_it_was_canceled(clean: Servers) -> None:
    lab = Lab()
    lost, canceled = lab.run("mail"), lab.run("report")
    lab.executing(lost)
    lab.executing(canceled)
    lab.jobs.cancel(canceled)
    lab.hand.advance(LEASE)
    lab.dispatch()
    assert (lab.state(lost), lab.state(canceled)) == ("failure", "canceled")
    assert counted(clean, job_queues.JOBS_INITIATOR) == {"done": 0, "failed": 0, "retried": 1}


def test_a_failed_attempt_of_a_job_is_counted_as_failed_only_if_it_is_the_last(
    clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(server_now)
    monkeypatch.setattr(tasks, "registry", lab.registry)
    monkeypatch.setattr(runner, "JOB_RETRY_POLICY", RetryPolicy(max_attempts=None, base=seconds(0)))

    def fail(error: Exception, *, run: JobRun) -> None:
        if run.attempt == 1:
            raise error

    lab.works = {"mail": partial(fail, ValueError()), "report": partial(fail, PermanentError())}
    for name in lab.works:
        lab.run(name)
        tasks.run_jobs(name, None, token=name)
    assert counted(clean, job_queues.JOBS_INITIATOR) == {"done": 1, "failed": 1, "retried": 1}


def test_counting_an_item_is_one_command(own_valkey: Valkey) -> None:
    counters.items("items", {"done": 1})  # the script is known from now on
    with redis.Redis.from_url(own_valkey.url) as client:
        before = client.info("commandstats")
        for _ in range(10):
            counters.items("items", {"done": 1})
        after = client.info("commandstats")
    sent = {
        name: after[name]["calls"] - before.get(name, {"calls": 0})["calls"]
        for name in after
        if name in ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_script|load", "cmdstat_time")
    }
    assert sent["cmdstat_evalsha"] == 10
    assert sent.get("cmdstat_script|load", 0) == 0


def test_counts_of_another_thread_do_not_wait_for_the_end_of_a_batch(clean: Servers) -> None:
    with counters.batched(), ThreadPoolExecutor(1) as pool:
        counters.items("items", {"done": 1})
        pool.submit(counters.items, "others", {"done": 2}).result(60)
        assert (counted(clean, "items")["done"], counted(clean, "others")["done"]) == (0, 2)
    assert (counted(clean, "items")["done"], counted(clean, "others")["done"]) == (1, 2)


@pytest.mark.parametrize(
    ("count", "prefix"),
    [(counters.items, counters.history_key("items")), (counters.items_by_hour, counters.hours_key("items"))],
)
def test_the_history_expires_soon_after_a_day(
    count: Callable[[str, dict[str, int]], None], prefix: str, clean: Servers
) -> None:
    count("items", {"done": 1})
    with connect(clean.valkey.url) as client:
        (key,) = client.keys(f"{prefix}*")
        assert 24 * 3600 < client.ttl(key) <= counters.HISTORY_RETENTION_SECONDS
