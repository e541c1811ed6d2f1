"""Totals: they only grow, with any process that counts, and an outage of Redis costs the caller nothing."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import redis

from dev.servers import Valkey
from queue_manager.core import redis_client
from queue_manager.core.redis_client import connect
from queue_manager.telemetry import counters, latency
from tests.real_servers import Servers

RUN = {"found": 3, "claimed": 2, "enqueued": 2, "errors": 0, "duration_ms": 40}


def totals(url: str, name: str) -> dict[str, int]:
    with connect(url) as client:
        (found,) = counters.totals(client, [counters.source(name)])
        return found


def test_amounts_are_added_up(clean: Servers) -> None:
    counters.add("items", {"done": 1})
    counters.add("items", {"done": 2, "failed": 1})
    assert totals(clean.valkey.url, "items") == {"done": 3, "failed": 1}
    assert totals(clean.valkey.url, "others") == {}


def test_a_run_of_a_scan_is_counted_with_its_duration(clean: Servers) -> None:
    for duration_ms in (40, 60, 61, 90_000):
        counters.scan("a scan", {**RUN, "duration_ms": duration_ms})
    counted = totals(clean.valkey.url, "a scan")
    assert counted.items() >= {"runs": 4, "found": 12, "enqueued": 8, "run.sum": 90_161}.items()
    histogram = dict(latency.Histogram.of(counted, "run").cumulative())
    assert (histogram["0.03"], histogram["0.06"], histogram["0.125"], histogram["60.0"]) == (0, 2, 3, 3)
    assert histogram["+Inf"] == 4


def test_an_outage_is_logged_once_and_counting_resumes(
    own_valkey: Valkey, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "BEST_EFFORT_PAUSE", 0)  # each of the calls tries
    caplog.set_level(logging.INFO, logger="queue_manager.QM/redis")
    counters.add("items", {"done": 1})
    own_valkey.kill()
    for _ in range(5):
        counters.add("items", {"done": 1})
    own_valkey.start()
    counters.add("items", {"done": 1})
    assert totals(own_valkey.url, "items") == {"done": 2}
    said = [record.msg["event"].split(":")[0] for record in caplog.records if isinstance(record.msg, dict)]
    assert said == ["Counts are not recorded", "Counts are recorded again"]


@pytest.mark.usefixtures("production_bounds")
def test_a_hanging_redis_delays_counting_only_once(own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "BEST_EFFORT_PAUSE", 3600)
    before = connections(own_valkey)
    os.kill(own_valkey.pid, signal.SIGSTOP)  # the system still accepts connections
    try:
        for _ in range(5):
            counters.add("items", {"done": 1})
    finally:
        os.kill(own_valkey.pid, signal.SIGCONT)
    assert connections(own_valkey) - before == 1 + 1, "one to count, and one of this test"


def connections(server: Valkey) -> int:
    """Return how many connections the server has accepted, including the one that asks."""
    with connect(server.url) as client:
        accepted: int = client.info("stats")["total_connections_received"]
    return accepted


def test_each_server_is_asked_for_its_own_counts_and_left_out_while_it_is_away(clean: Servers) -> None:
    away = "redis://other.test/0"
    sources = {"here": counters.source("here"), "there": replace(counters.source("there"), url=away)}

    def read(server: redis.Redis, some: Sequence[counters.Source]) -> list[int]:
        if server is not client and is_away:
            raise redis.ConnectionError("refused")
        return [len(some)] * len(some)

    with connect(clean.valkey.url) as client:
        is_away = False
        assert counters.from_each_server(client, sources, read) == {"here": 1, "there": 1}
        is_away = True
        assert counters.from_each_server(client, sources, read) == {"here": 1}


def test_of_the_last_hour_only_the_tens_of_minutes_that_change_are_read_again(
    clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten, minute = 2_000, 20_005  # since 1970
    sources = [counters.source(name) for name in ("a", "b")]
    with connect(clean.valkey.url) as client:

        def count(name: str, at: int) -> None:
            client.hincrby(f"{counters.history_key(name)}{at // 10}", f"done:{at % 10}", 1)

        def recent(now: int) -> tuple[list[tuple[int, int]], int]:
            """Return what was done in the last minute and hour, and the number of reads."""
            monkeypatch.setattr(counters, "_now", lambda _: 60 * now)
            client.config_resetstat()
            found = [(one.minute.get("done", 0), one.hour.get("done", 0)) for one in counters.recent(client, sources)]
            return found, client.info("commandstats")["cmdstat_hgetall"]["calls"]

        for at in (minute - 60, minute - 59, 10 * (ten - 1) - 1, 10 * (ten - 1), minute - 1):
            count("a", at)
        assert recent(minute)[0] == [(1, 4), (0, 0)]
        count("a", 10 * (ten - 1))
        count("b", minute)
        assert recent(minute) == ([(1, 5), (0, 1)], 2 * len(sources))
        assert recent(minute + 1)[0] == [(0, 4), (1, 1)]


def test_the_last_hour_is_right_while_another_thread_reads_the_next_ten_minutes(
    clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    minute, source, read = 20_009, counters.source("a"), counters.by_minute
    with connect(clean.valkey.url) as client:

        def recent(now: int) -> int:
            monkeypatch.setattr(counters, "_now", lambda _: 60 * now)
            (found,) = counters.recent(client, [source])
            return found.hour["done"]

        def read_after_the_other(*where: Any, first: int, last: int) -> list[dict[int, counters.Totals]]:
            if last == minute:
                assert recent(minute + 1) == 1
            return read(*where, first=first, last=last)

        client.hset(f"{counters.history_key('a')}{minute // 10 - 1}", "done:5", 1)
        monkeypatch.setattr(counters, "by_minute", read_after_the_other)
        assert recent(minute) == 1
