"""Probes and metrics tell what is away, recover by themselves, and never fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from eventually import eventually
from prometheus_client.parser import text_string_to_metric_families
from real_servers import Servers
from rooms import make_room
from web_process import Web, shared_web, web

from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.devstack.servers import Mongo, Valkey
from queue_manager.transport import counters
from queue_manager.transport.server import connect

SCAN, QUEUE = "tasks.support_snooze.scan_expired_snoozes", "support-snooze"
RUN = {"found": 3, "claimed": 2, "enqueued": 2, "errors": 1, "duration_ms": 40}


@dataclass(frozen=True)
class Lonely:
    """A web process whose servers are not there yet."""

    process: Web
    mongo: Mongo
    valkey: Valkey


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[Lonely]:
    mongo, valkey = Mongo(tmp_path / "mongo"), Valkey(tmp_path / "valkey")
    with web(tmp_path, MONGO_DB_URL=mongo.url, REDIS_URL=valkey.url) as process:
        yield Lonely(process, mongo, valkey)
    valkey.kill()
    mongo.kill()


@pytest.fixture(scope="session")
def process(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    return shared_web(tmp_path_factory)


def scrape(process: Web) -> dict[str, float]:
    """Return the samples by name and label values, in the labels' order: `name{support-snooze}`."""
    answer = process.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        f"{sample.name}{{{','.join(value for _, value in sorted(sample.labels.items()))}}}": sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_readyz_names_what_is_away_and_recovers(lonely: Lonely) -> None:
    process, mongo, valkey = lonely.process, lonely.mongo, lonely.valkey
    answer = process.get("/readyz")
    assert (answer.status, answer.body["error"]) == (503, "not ready")
    assert [reason.split(" does not answer")[0] for reason in answer.body["reasons"]] == [
        f"MongoDB at {mongo.url}",
        f"Redis at {valkey.url}",
    ]
    assert answer.took < 4
    assert process.get("/healthz").body == {"status": "ok"}
    valkey.start()
    mongo.start()
    assert eventually(lambda: process.get("/readyz").status == 200, within=10)
    os.kill(valkey.pid, signal.SIGSTOP)
    hanging = process.get("/readyz")
    os.kill(valkey.pid, signal.SIGCONT)
    assert (hanging.status, len(hanging.body["reasons"])) == (503, 1)
    assert hanging.took < 4
    assert process.get("/readyz").status == 200


def test_metrics_leave_out_what_is_away(lonely: Lonely) -> None:
    lonely.valkey.start()
    samples = scrape(lonely.process)
    assert samples["queue_manager_up{mongodb}"] == 0
    assert samples["queue_manager_up{redis}"] == 1
    assert samples["queue_manager_scan_runs_total{support-snooze}"] == 0
    assert not any("pending" in name for name in samples)
    lonely.valkey.kill()
    assert scrape(lonely.process) == {"queue_manager_up{mongodb}": 0, "queue_manager_up{redis}": 0}


def test_metrics_show_totals_durations_and_figures(clean: Servers, process: Web) -> None:
    make_room(server_now() - seconds(60))
    counters.scan(SCAN, RUN)
    counters.add(QUEUE, {"done": 2, "retried": 1})
    first = scrape(process)
    counters.scan(SCAN, {**RUN, "duration_ms": 400})
    counters.add(QUEUE, {"done": 1, "failed": 1})
    second = scrape(process)
    for name, before, after in [
        ("queue_manager_scan_runs_total{support-snooze}", 1, 2),
        ("queue_manager_scan_found_total{support-snooze}", 3, 6),
        ("queue_manager_scan_errors_total{support-snooze}", 1, 2),
        ("queue_manager_scan_duration_seconds_bucket{0.05,support-snooze}", 1, 1),
        ("queue_manager_scan_duration_seconds_bucket{+Inf,support-snooze}", 1, 2),
        ("queue_manager_scan_duration_seconds_count{support-snooze}", 1, 2),
        ("queue_manager_scan_duration_seconds_sum{support-snooze}", 0.04, 0.44),
        ("queue_manager_items_total{done,support-snooze}", 2, 3),
        ("queue_manager_items_total{failed,support-snooze}", 0, 1),
        ("queue_manager_items_total{retried,support-snooze}", 1, 1),
        ("queue_manager_pending{support-snooze}", 1, 1),
        ("queue_manager_up{mongodb}", 1, 1),
    ]:
        assert (first[name], second[name]) == (before, after), name
    assert 60 <= first["queue_manager_lag_seconds{support-snooze}"] < 120


def test_metrics_show_queues_and_the_leader(clean: Servers, process: Web) -> None:
    with connect(clean.valkey.url) as client:
        client.rpush("scans", "a message")
        client.rpush("scans\x06\x163", "another, of priority 3")
        client.hset("qm:unacked", "tag", "a message")
        client.set("redbeat::lock:epoch", 7)
        fields: dict[str, str] = {"token": "t", "host": "h", "pid": "1", "since_ms": "1", "epoch": "7"}
        client.hset("redbeat::lock", mapping=fields)
        led = scrape(process)
        client.delete("redbeat::lock")
        alone = scrape(process)
    assert led["queue_manager_queue_messages{scans}"] == 2
    assert led["queue_manager_queue_messages{support-snooze}"] == 0
    assert led["queue_manager_unacked_messages{}"] == 1
    assert (led["queue_manager_leader{}"], led["queue_manager_leader_epoch{}"]) == (1, 7)
    assert (alone["queue_manager_leader{}"], alone["queue_manager_leader_epoch{}"]) == (0, 7)
