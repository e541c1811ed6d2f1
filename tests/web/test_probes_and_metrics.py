"""Probes and metrics name unavailable servers, recover by themselves, and never fail."""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pymongo import MongoClient, errors
from redis import Redis, exceptions

from dev.ports import free_port
from models.database import LOGIN_REFUSED, server_now
from queue_manager.beat.leader_lock import LEADER_LOCK, epoch_key
from queue_manager.core.clock import seconds
from queue_manager.core.errors import Unavailable
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from queue_manager.system import SystemStats
from queue_manager.telemetry import counters, latency, worker_heartbeats
from queue_manager.web.routes import metrics as route
from queue_manager.web.routes import probes
from tasks import job_queues as tasks
from tasks.job_queues import JOBS_QUEUE as JOBS
from tasks.job_queues import dispatch_due_jobs
from tests.eventually import eventually
from tests.job_lab import Lab
from tests.pace import promptly
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.tasks.hand_worker import run as try_run
from tests.tasks.hand_worker import take
from tests.web.web_process import Lonely, Web, forked_web, lonely_web, shared_web

SCAN, QUEUE = "tasks.support_snooze.scan_expired_snoozes", "support-snooze"
RUN = {"found": 3, "claimed": 2, "enqueued": 2, "errors": 1, "duration_ms": 40}


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[Lonely]:
    with lonely_web(tmp_path) as lonely:
        yield lonely


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


def wait_for_reasons(process: Web, *reasons: str) -> None:
    """Wait until these alone are why a process is not ready: a server that once answers too late is named, too."""

    def are_named() -> bool:
        answer = process.get("/readyz")
        return answer.status == 503 and answer.body["reasons"] == [*reasons]

    assert eventually(are_named)


@pytest.mark.slow
def test_readyz_names_unavailable_servers_and_recovers(lonely: Lonely) -> None:
    process, mongo, valkey = lonely.process, lonely.mongo, lonely.valkey
    with promptly(4):
        answer = process.get("/readyz")
    assert (answer.status, answer.body["error"]) == (503, "not ready")
    assert answer.body["reasons"] == ["MongoDB does not answer", "Redis does not answer"]
    assert not re.search(r"127\.0\.0\.1|redis:|mongodb:|queue_manager", answer.text)  # it is public
    assert f"MongoDB at {mongo.url}" in process.log
    assert f"Redis at {valkey.url}" in process.log
    assert process.get("/healthz").body == {"status": "ok"}
    valkey.start()
    mongo.start()
    assert eventually(lambda: process.get("/readyz").status == 200)
    os.kill(valkey.pid, signal.SIGSTOP)
    try:
        with promptly(5):  # the first request may get the answer of the same second
            hanging = eventually(lambda: (answer := process.get("/readyz")).status == 503 and answer)
    finally:
        os.kill(valkey.pid, signal.SIGCONT)
    assert "Redis does not answer" in hanging.body["reasons"]  # MongoDB is named, too, if it answers too late
    assert eventually(lambda: process.get("/readyz").status == 200)


@pytest.mark.slow
def test_readyz_fails_if_redis_refuses_writes(lonely: Lonely) -> None:
    lonely.mongo.start()
    lonely.valkey.start()
    assert eventually(lambda: lonely.process.get("/readyz").status == 200)
    with connect(lonely.valkey.url) as client:
        client.replicaof("127.0.0.1", free_port())  # as after a failover: it answers, and is read-only
        wait_for_reasons(lonely.process, "Redis refuses to write")
        client.replicaof("NO", "ONE")
    assert eventually(lambda: lonely.process.get("/readyz").status == 200)


@pytest.mark.slow
def test_readyz_fails_if_mongodb_refuses_writes(lonely: Lonely) -> None:
    lonely.mongo.start()
    lonely.valkey.start()
    assert eventually(lambda: lonely.process.get("/readyz").status == 200)
    with MongoClient[dict[str, Any]](lonely.mongo.url) as client:
        client.admin.command("fsync", lock=True)  # it answers pings and reads, and writes wait
        try:
            wait_for_reasons(lonely.process, "MongoDB does not answer")
        finally:
            client.admin.command("fsyncUnlock")
        assert eventually(lambda: lonely.process.get("/readyz").status == 200)
        assert client.get_default_database()["qm_readiness"].count_documents({}) == 1


def test_readyz_checks_the_server_of_the_message_queue(clean: Servers, tmp_path: Path) -> None:
    away = f"redis://127.0.0.1:{free_port()}/0"
    with forked_web(tmp_path, QM_MESSAGE_QUEUE="true", QM_QUEUE_REDIS_URL=away) as process:
        wait_for_reasons(process, "The message queue's Redis does not answer")


def test_readyz_writes_at_most_once_a_second(lonely: Lonely) -> None:
    lonely.mongo.start()
    lonely.valkey.start()
    assert eventually(lambda: lonely.process.get("/readyz").status == 200)
    with connect(lonely.valkey.url) as client:
        written, began = writes(client), time.monotonic()
        for _ in range(40):
            assert eventually(lambda: lonely.process.get("/readyz").status == 200)
        elapsed = time.monotonic() - began
        assert writes(client) - written <= elapsed + 1
        assert 0 < client.pttl("qm:readiness") <= 60_000  # nothing is left of it


def test_a_write_is_the_answer_until_the_next_write(monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([OSError(), None])

    def write() -> None:
        if (error := next(results)) is not None:
            raise error

    server = probes.Server(name="A", url="", write=write, problem=lambda _: "fails")
    monkeypatch.setattr(probes, "needed_servers", lambda: [server])
    readiness, found = probes.Readiness(), []
    for interval in (0.0, math.inf, 0.0, math.inf):
        monkeypatch.setattr(probes, "WRITE_INTERVAL", interval)
        found.append(asyncio.run(readiness.problems()))
    assert found == [["A fails"], ["A fails"], [], []]


@pytest.mark.parametrize(
    ("server", "error", "problem"),
    [
        ("Redis", exceptions.AuthenticationError(), probes.REFUSED_LOGIN),
        ("Redis", exceptions.NoPermissionError(), probes.REFUSED_LOGIN),
        ("Redis", exceptions.ReadOnlyError(), probes.REFUSED_WRITE),
        ("Redis", exceptions.TimeoutError(), probes.NO_ANSWER),
        ("MongoDB", errors.OperationFailure("", LOGIN_REFUSED), probes.REFUSED_LOGIN),
        ("MongoDB", errors.OperationFailure("not authorized", 13), probes.REFUSED_WRITE),
        ("MongoDB", errors.NotPrimaryError(), probes.REFUSED_WRITE),
        ("MongoDB", errors.WTimeoutError("", 64), probes.NO_MAJORITY),
        ("MongoDB", errors.ExecutionTimeout("", 50), probes.NO_ANSWER),
        ("MongoDB", errors.ServerSelectionTimeoutError(), probes.NO_ANSWER),
    ],
)
def test_readyz_says_what_is_wrong(server: str, error: Exception, problem: str) -> None:
    assert [one.problem(error) for one in probes.needed_servers() if one.name == server] == [problem]


def writes(client: Redis) -> int:
    found: int = client.info("commandstats").get("cmdstat_set", {}).get("calls", 0)
    return found


@pytest.mark.slow
def test_metrics_omit_values_of_unavailable_servers(lonely: Lonely) -> None:
    lonely.valkey.start()
    samples = scrape(lonely.process)
    assert samples["queue_manager_up{mongodb}"] == 0
    assert samples["queue_manager_up{redis}"] == 1
    assert samples["queue_manager_scan_runs_total{support-snooze}"] == 0
    assert not any("pending" in name for name in samples)
    lonely.valkey.kill()
    away = {
        f"queue_manager_build_info{{{worker_heartbeats.OWN_RELEASE}}}": 1,
        "queue_manager_up{mongodb}": 0,
        "queue_manager_up{redis}": 0,
        "queue_manager_problem{server-away,critical,mongodb}": 1,
        "queue_manager_problem{server-away,critical,redis}": 1,
    }
    assert eventually(lambda: scrape(lonely.process) == away)


@pytest.mark.usefixtures("clean")
def test_metrics_wait_only_once_for_a_hanging_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def hang() -> NoReturn:
        asked.append("redis")
        raise Unavailable("Redis does not answer")

    monkeypatch.setattr(route, "redis_server", hang)
    monkeypatch.setattr(route, "broker", hang)  # each call would take 2 s, and Prometheus gives up after 10 s
    (up,) = (metric for metric in route.SystemsCollector([], {}).collect() if metric.name == "queue_manager_up")
    assert {sample.labels["server"]: sample.value for sample in up.samples} == {"redis": 0, "mongodb": 1}
    assert asked == ["redis"]


@pytest.mark.usefixtures("clean")
def test_metrics_name_a_broker_of_its_own_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> NoReturn:
        raise Unavailable("The broker does not answer")

    other = settings().model_copy(update={"broker_url": "redis://127.0.0.1:1/0"})
    monkeypatch.setattr(route, "settings", lambda: other)
    monkeypatch.setattr(route, "broker", fail)
    (up,) = (metric for metric in route.SystemsCollector([], {}).collect() if metric.name == "queue_manager_up")
    assert {one.labels["server"]: one.value for one in up.samples} == {"redis": 1, "mongodb": 1, "broker": 0}


@pytest.mark.usefixtures("clean")
def test_a_statistic_with_the_name_of_another_metric_is_omitted() -> None:
    found = list(route.SystemsCollector([], {"a": SystemStats(numbers={"workers": 7, "own": 8})}).collect())
    samples = [(sample.name, sample.value) for metric in found for sample in metric.samples]
    assert ("queue_manager_own", 8) in samples
    assert [value for name, value in samples if name == "queue_manager_workers"] == [0]


@pytest.mark.usefixtures("clean")
def test_metrics_have_statistics_from_redis_while_mongodb_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> NoReturn:
        raise Unavailable("MongoDB does not answer")

    monkeypatch.setattr(route, "ping_mongodb", fail)
    stats = {"overdue-messages": SystemStats(numbers={"pending": 7})}
    found = {metric.name: metric.samples for metric in route.SystemsCollector([], stats).collect()}
    assert {one.labels["server"]: one.value for one in found["queue_manager_up"]} == {"redis": 1, "mongodb": 0}
    assert [one.value for one in found["queue_manager_pending"]] == [7]


def test_metrics_omit_only_values_whose_key_has_another_type(clean: Servers, process: Web) -> None:
    with connect(clean.valkey.url) as client:
        client.set(counters.source(QUEUE).totals, "of another program")
        samples = scrape(process)
    assert samples["queue_manager_up{redis}"] == 1
    assert "queue_manager_scan_runs_total{support-snooze}" not in samples
    assert samples["queue_manager_leader{}"] == 0
    assert samples["queue_manager_queue_messages{support-snooze}"] == 0


def test_metrics_show_totals_durations_and_stats(clean: Servers, process: Web) -> None:
    make_room(server_now() - seconds(61))  # a second more, because two processes know the server's clock differently
    counters.scan(SCAN, RUN)
    counters.add(QUEUE, {"done": 2, "retried": 1})
    assert eventually(lambda: scrape(process)["queue_manager_pending{support-snooze}"] == 1)  # read once a second
    first = scrape(process)
    counters.scan(SCAN, {**RUN, "duration_ms": 400})
    timed = Counter({"done": 1, "failed": 1})
    latency.count_all(timed, [(0, 0), (0, 0), (0, 0)], began_ms=0, ended_ms=200)
    latency.count_all(timed, [(0, 0)], began_ms=0, ended_ms=300)
    counters.add(QUEUE, timed)
    second = scrape(process)
    for name, before, after in [
        ("queue_manager_scan_runs_total{support-snooze}", 1, 2),
        ("queue_manager_scan_found_total{support-snooze}", 3, 6),
        ("queue_manager_scan_errors_total{support-snooze}", 1, 2),
        ("queue_manager_scan_duration_seconds_bucket{0.06,support-snooze}", 1, 1),
        ("queue_manager_scan_duration_seconds_bucket{+Inf,support-snooze}", 1, 2),
        ("queue_manager_scan_duration_seconds_count{support-snooze}", 1, 2),
        ("queue_manager_scan_duration_seconds_sum{support-snooze}", 0.04, 0.44),
        ("queue_manager_items_total{done,support-snooze}", 2, 3),
        ("queue_manager_items_total{failed,support-snooze}", 0, 1),
        ("queue_manager_items_total{retried,support-snooze}", 1, 1),
        ("queue_manager_items_timed_total{yes,support-snooze}", 0, 3),
        ("queue_manager_items_timed_total{no,support-snooze}", 0, 1),
        ("queue_manager_pending{support-snooze}", 1, 1),
        ("queue_manager_up{mongodb}", 1, 1),
    ]:
        assert (first[name], second[name]) == (before, after), name
    assert 60 <= first["queue_manager_lag_seconds{support-snooze}"] < 120


def test_failing_jobs_show_in_metrics_and_in_the_overview(
    clean: Servers, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = shared_web(tmp_path_factory, QM_JOBS="true", QM_CONVERSATIONS="false")
    lab = Lab(server_now)
    monkeypatch.setattr(tasks, "registry", lab.registry)
    lab.works = {"mail": lambda *_, run: 1 / 0}
    for name in ("report",) * 3 + ("mail",) * 4:
        lab.run(name)
    dispatch_due_jobs()
    for _ in range(2):
        try_run(take(clean.valkey.url, JOBS))
    assert eventually(lambda: scrape(process)["queue_manager_failed{job-queues}"] == 4)  # read once a second
    samples = scrape(process)
    assert samples["queue_manager_items_total{done,job-queues}"] == 3
    assert samples["queue_manager_items_total{retried,job-queues}"] == 4
    assert samples["queue_manager_items_total{failed,job-queues}"] == 0
    states = {state: samples[f"queue_manager_jobs{{{state}}}"] for state in ("success", "failure", "pending")}
    assert states == {"success": 3, "failure": 4, "pending": 0}
    systems = eventually(lambda: failing(process.get("/api/overview").body["systems"]))
    (problem,) = [one for one in systems["problems"] if one["rule"] == "failing-jobs"]
    assert problem["text"] == "4 failing jobs: mail (4)"
    assert problem["page"] == "/jobs?state=failure"


def failing(systems: list[dict[str, Any]]) -> dict[str, Any] | None:
    return next((one for one in systems if one["name"] == "job-queues" and one["failed"] == 4), None)


def test_metrics_show_queues_and_the_leader(clean: Servers, process: Web) -> None:
    with connect(clean.valkey.url) as client:
        client.rpush("scans", "a message")
        client.rpush("scans\x06\x163", "another, of priority 3")
        client.hset("qm:unacked", "tag", "a message")
        client.set(epoch_key(LEADER_LOCK), 7)
        fields: dict[str, str] = {"token": "t", "host": "h", "pid": "1", "since_ms": "1", "epoch": "7"}
        client.hset(LEADER_LOCK, mapping=fields)
        led = scrape(process)
        client.delete(LEADER_LOCK)
        alone = scrape(process)
    assert led["queue_manager_queue_messages{scans}"] == 2
    assert led["queue_manager_queue_messages{support-snooze}"] == 0
    assert led["queue_manager_unacked_messages{}"] == 1
    assert (led["queue_manager_leader{}"], led["queue_manager_leader_epoch{}"]) == (1, 7)
    assert (alone["queue_manager_leader{}"], alone["queue_manager_leader_epoch{}"]) == (0, 7)
