"""`queue-manager health`, the places where a web process shows the same, and a deployment in which nothing is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from pymongo import MongoClient

from beat_schedule import SYSTEMS
from models import scan_run
from models.database import server_now
from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.broker.backlog import Backlog
from queue_manager.core.background import in_thread
from queue_manager.core.clock import milliseconds, seconds
from queue_manager.core.redis_client import connect
from queue_manager.health_rules import Rule
from queue_manager.items import DueItem
from queue_manager.telemetry import worker_heartbeats
from services.due_documents import work_of
from services.support_snooze import system as support_snooze
from tests.e2e.commands import queue_manager
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.web_process import Web

RUN = {"found": 0, "claimed": 0, "enqueued": 0, "errors": 0, "duration_ms": 1}
SLOW = {"QM_SNOOZE_SCAN_SECONDS": "60", "JOBS_TIMER_MS": "60000"}
"""Late is later than three minutes, so that a busy machine makes nothing late."""
QUEUES = ["scans", *(system.queue for system in SYSTEMS if system.queue is not None)]


@dataclass(frozen=True)
class Answer:
    exit_code: int
    state: dict[str, Any]

    @property
    def problems(self) -> list[str]:
        return [problem["text"] for problem in self.state["problems"]]

    @property
    def ids(self) -> list[tuple[str, str]]:
        """The system and the rule of each problem."""
        return [(problem["system"], problem["rule"]) for problem in self.state["problems"]]

    def only_problem(self, system: str, rule: Rule) -> str:
        assert (self.exit_code, self.ids) == (1, [(system, rule.id)])
        (problem,) = self.state["problems"]
        assert problem["action"] == rule.action
        text: str = problem["text"]
        return text


def health(directory: Path, **env: str) -> Answer:
    result = queue_manager("health", "--json", cwd=directory, **env)
    assert result.stderr == ""
    return Answer(result.returncode, json.loads(result.stdout))


def said(directory: Path, **env: str) -> str:
    """Return what the command prints for people."""
    return queue_manager("health", cwd=directory, **env).stdout


def lead(servers: Servers, *, since: timedelta) -> None:
    """Do what a beat does that has led for so long."""
    with connect(servers.valkey.url) as client:
        began = client.time()[0] * 1000 - milliseconds(since)
        fields = {"token": "t", "host": "h", "pid": "1", "since_ms": str(began), "epoch": "7"}
        client.hset(LEADER_LOCK, mapping=fields)
        client.pexpire(LEADER_LOCK, 600_000)


@contextmanager
def repeated(act: Callable[[], object]) -> Iterator[None]:
    """Do it now and every second: what processes show expires."""

    def run(is_over: Event) -> None:
        while not is_over.wait(1):
            act()

    act()
    with in_thread(run, name="repeated"):
        yield


def run_scans() -> None:
    for system in SYSTEMS:
        scan_run.record(system.scan_task, RUN, error=None, now=server_now())


def show_worker() -> None:
    worker_heartbeats.record("worker@here", QUEUES)


@contextmanager
def full_memory(url: str) -> Iterator[None]:
    """Let a Redis refuse what takes memory."""
    with connect(url) as client:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


@contextmanager
def locked_mongodb(url: str) -> Iterator[None]:
    """Let a MongoDB answer pings and reads while writes wait."""
    with MongoClient[dict[str, Any]](url) as client:
        client.admin.command("fsync", lock=True)
        try:
            yield
        finally:
            client.admin.command("fsyncUnlock")


def taken_room(*, due_ago: float) -> DueItem:
    make_room(server_now() - seconds(due_ago))
    (item,) = [item for batch in work_of(support_snooze).take_due(Backlog) for item in batch.items]
    return item


def overview_problems(process: Web) -> list[dict[str, Any]]:
    body = process.get("/api/overview").body
    return [*body["problems"], *(problem for system in body["systems"] for problem in system["problems"])]


def in_overview(process: Web) -> list[tuple[str, str]]:
    problems = overview_problems(process)
    for problem in problems:
        assert problem["severity"] == SEVERITIES[problem["rule"]]
    return [(problem["system"], problem["rule"]) for problem in problems]


def in_metrics(process: Web) -> list[tuple[str, str]]:
    families = text_string_to_metric_families(process.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == "queue_manager_problem"]
    assert {sample.value for sample in samples} <= {1}
    for sample in samples:
        assert sample.labels["severity"] == SEVERITIES[sample.labels["rule"]]
    return [(sample.labels["system"], sample.labels["rule"]) for sample in samples]


def in_probe(process: Web) -> list[tuple[str, ...]]:
    answer = process.get("/readyz?deep")
    reasons = [] if answer.status == 200 else answer.body["reasons"]
    assert answer.status == (503 if reasons else 200)
    return [tuple(reason.split(": ")) for reason in reasons]


SEVERITIES = {rule.id: rule.severity for rule in Rule}
LOOKS = (in_overview, in_metrics, in_probe)
"""The places where the web process shows problems; each returns their systems and rules."""
