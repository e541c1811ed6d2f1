"""Durations of items and jobs, executed alone or in batches, by the server's clock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
import redis

from models import support_room
from models.database import server_now
from queue_manager.batching import execution
from queue_manager.core.clock import hours, milliseconds, seconds, to_iso, unix_ms
from queue_manager.core.redis_client import connect
from queue_manager.telemetry import counters, latency
from queue_manager.telemetry.latency import SENT_HEADER, Histogram, Measure
from services import job_queues
from services.stale_thumbnails import threshold
from tasks import job_queues as tasks
from tasks.job_queues import JOBS_QUEUE, dispatch_due_jobs
from tasks.stale_thumbnails import reset_stale_thumbnail
from tasks.support_snooze import scan_expired_snoozes, unsnooze_room
from tests.job_lab import Lab
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.tasks.hand_worker import Message, run, take, waiting_messages

ROOMS = "support-snooze"


def durations(servers: Servers, name: str = ROOMS) -> Mapping[Measure, Histogram]:
    with connect(servers.valkey.url) as client:
        (totals,) = counters.totals(client, [counters.source(name)])
        (recent,) = counters.recent(client, [counters.source(name)])
    assert latency.histograms(recent.hour) == latency.histograms(totals)
    return latency.histograms(totals)


def as_batch(messages: list[Message]) -> Any:
    return execution.run(messages[0].task, [(one.id, one.headers, (one.args, one.kwargs, {})) for one in messages])


def is_between(histogram: Histogram, lowest_ms: int, highest_ms: int) -> bool:
    """Return True if all durations are in buckets that overlap these bounds."""
    least, most = histogram.percentile(0), histogram.percentile(1)
    return least is not None and most is not None and lowest_ms / 2.2 <= least <= most <= highest_ms * 2.2


def test_an_item_executed_alone_records_three_durations(clean: Servers) -> None:
    make_room(server_now() - hours(1))
    scan_expired_snoozes()
    run(take(clean.valkey.url, ROOMS))
    found = durations(clean)
    assert [one.total for one in found.values()] == [1, 1, 1]
    assert is_between(found["due_to_done"], 3_600_000, 3_660_000)
    assert is_between(found["wait"], 0, 60_000)


def test_each_item_of_a_batch_records_three_durations_in_one_command(clean: Servers) -> None:
    for ago in (1, 60, 3600):
        make_room(server_now() - seconds(ago))
    scan_expired_snoozes()
    messages = waiting_messages(clean.valkey.url, ROOMS)
    counters.items("other", {"done": 1})  # the script is known from now on
    with redis.Redis.from_url(clean.valkey.url) as client:
        before = client.info("commandstats")["cmdstat_hincrby"]["calls"]
        as_batch(messages)
        after = client.info("commandstats")["cmdstat_hincrby"]["calls"]
    with connect(clean.valkey.url) as client:
        (totals,) = counters.totals(client, [counters.source(ROOMS)])
    assert totals["done"] == 3
    assert after - before == 2 * len(totals)  # each field once in the totals, once in the minute
    found = durations(clean)
    assert [one.total for one in found.values()] == [3, 3, 3]
    assert found["due_to_done"].share_within(15_000) == pytest.approx(1 / 3)
    assert found["due_to_done"].share_within(1_800_000) == pytest.approx(2 / 3)
    assert found["wait"].share_within(60_000) == 1


def test_durations_of_a_batch_begin_with_its_attempt_and_not_with_its_end(clean: Servers) -> None:
    work, due_at = unsnooze_room.work(), server_now() - hours(1)
    items = [unsnooze_room.item(f"task-{number}", [f"room-{number}", to_iso(due_at)], {}) for number in range(4)]
    results: list[Any] = [{"room_id": "room-0"}, {"skipped": True}, 5, "skipped"]  # a work may return any value
    done: list[tuple[Any, Any, Any]] = [(item, {}, result) for item, result in zip(items, results, strict=True)]
    found = latency.histograms(unsnooze_room.durations(work, done, began=time.monotonic() - 600))
    assert [one.total for one in found.values()] == [3, 3, 3]
    assert is_between(found["run"], 600_000, 660_000)
    assert is_between(found["wait"], 3_000_000, 3_060_000)
    assert is_between(found["due_to_done"], 3_600_000, 3_660_000)


def test_an_item_with_nothing_to_do_records_no_durations(clean: Servers) -> None:
    for _ in range(2):
        make_room(server_now() - seconds(1))
    scan_expired_snoozes()
    messages = waiting_messages(clean.valkey.url, ROOMS)
    as_batch(messages)
    as_batch(messages)
    run(messages[0])
    assert [one.total for one in durations(clean).values()] == [2, 2, 2]


def test_a_failed_attempt_records_no_durations(clean: Servers) -> None:
    unsnooze_room.apply_async(["no id"])
    run(take(clean.valkey.url, ROOMS))
    assert [one.total for one in durations(clean).values()] == [0, 0, 0]


def test_an_item_without_a_due_time_records_its_run_time_only(clean: Servers) -> None:
    room = make_room(server_now() - seconds(1))
    unsnooze_room.delay(str(room))
    run(take(clean.valkey.url, ROOMS))
    found = durations(clean)
    assert {measure: one.total for measure, one in found.items()} == {"due_to_done": 0, "wait": 0, "run": 1}


def test_the_wait_of_an_item_that_was_dispatched_late_starts_at_its_dispatch(clean: Servers) -> None:
    room, due_at = make_room(server_now() - hours(1)), server_now() - hours(1)
    support_room.rooms().update_one({"_id": room}, {"$set": {"snooze_time.time": due_at}})
    scan_expired_snoozes()
    message = take(clean.valkey.url, ROOMS)
    assert abs(message.headers[SENT_HEADER] - unix_ms(server_now())) < 60_000
    assert latency.ready_ms(unix_ms(due_at), message.headers) == message.headers[SENT_HEADER]
    later = {SENT_HEADER: message.headers[SENT_HEADER], "eta": (server_now() + hours(1)).isoformat()}
    assert latency.ready_ms(unix_ms(due_at), later) > message.headers[SENT_HEADER] + 3_500_000


def test_a_site_is_due_when_its_build_is_stale(clean: Servers) -> None:
    item = reset_stale_thumbnail.item("token", ["instasites", "1" * 24, "2026-01-31T09:30:00.000Z"], {})
    assert reset_stale_thumbnail.work().due_ms(item) == 1_769_851_800_000 + milliseconds(threshold())


def test_job_durations_are_recorded_in_total_and_by_name(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(server_now)
    monkeypatch.setattr(tasks, "registry", lab.registry)
    lab.works = {"report": lambda *_, run: 1 / 0}
    for name in ("mail", "mail", "report"):
        lab.run(name)
    dispatch_due_jobs()
    for _ in range(2):
        run(take(clean.valkey.url, JOBS_QUEUE))
    assert [one.total for one in durations(clean, job_queues.JOBS_INITIATOR).values()] == [2, 2, 2]
    with connect(clean.valkey.url) as client:
        names = [f"{job_queues.JOBS_INITIATOR}/{name}" for name in ("mail", "report")]
        mail, report = counters.last_hours(client, names)
    assert [one.total for one in latency.histograms(mail).values()] == [2, 2, 2]
    assert (mail["done"], report["retried"]) == (2, 1)
    assert durations(clean, JOBS_QUEUE)["run"].total == 0  # the runs through the queue are not items


def test_a_header_named_durations_is_ignored(clean: Servers, caplog: pytest.LogCaptureFixture) -> None:
    Lab(server_now).run("mail")
    dispatch_due_jobs()
    message = take(clean.valkey.url, JOBS_QUEUE)
    message.headers["durations"] = ["unexpected"]
    run(message)
    assert "on_success handler raised" not in caplog.text
