"""Marks of scans: those that run, begun once, ended by their own run and by their lease; and the last run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models import scan_run
from models.database import collection
from queue_manager.core.clock import minutes, seconds
from tests.rooms import T0

pytestmark = pytest.mark.usefixtures("clean")
SCAN = "tasks.some.scan"


def test_a_scan_is_marked_as_running_from_start_to_end() -> None:
    assert SCAN not in scan_run.running(now=T0)
    scan_run.begin(SCAN, "a", now=T0)
    assert SCAN in scan_run.running(now=T0)
    assert "tasks.other.scan" not in scan_run.running(now=T0)
    scan_run.end(SCAN, "a")
    assert SCAN not in scan_run.running(now=T0)


def test_a_crashed_scan_blocks_until_its_lease_ends() -> None:
    scan_run.begin(SCAN, "crashed", now=T0)
    assert not scan_run.try_begin(SCAN, "b", now=T0 + minutes(5) - seconds(1))
    assert scan_run.try_begin(SCAN, "b", now=T0 + minutes(5))


def test_runs_may_overlap_and_each_ends_its_own_mark_only() -> None:
    scan_run.begin(SCAN, "a", now=T0)
    scan_run.begin(SCAN, "b", now=T0)
    scan_run.end(SCAN, "a")
    assert SCAN in scan_run.running(now=T0)
    scan_run.end(SCAN, "b")
    assert scan_run.try_begin(SCAN, "c", now=T0)


def test_one_of_many_concurrent_scans_begins() -> None:
    with ThreadPoolExecutor(8) as threads:
        begun = list(threads.map(lambda token: scan_run.try_begin(SCAN, token, now=T0), "abcdefgh"))
    assert begun.count(True) == 1


def test_the_scan_takes_over_the_mark_of_its_trigger() -> None:
    assert scan_run.try_begin(SCAN, "task id", now=T0, lease=seconds(10))
    scan_run.begin(SCAN, "task id", now=T0 + seconds(9))
    assert SCAN in scan_run.running(now=T0 + seconds(60))
    scan_run.end(SCAN, "task id")
    assert SCAN not in scan_run.running(now=T0 + seconds(60))


def test_expired_marks_are_removed_and_tokens_are_not_expressions() -> None:
    for number in range(5):
        scan_run.begin(SCAN, f"$token{number}", now=T0 + minutes(10 * number))
    (document,) = collection(scan_run.RUNNING_COLLECTION).find()
    assert [run["token"] for run in document["runs"]] == ["$token4"]


def test_the_last_run_is_known_after_its_report_was_deleted() -> None:
    run = {"found": 3, "claimed": 2, "enqueued": 2, "errors": 1, "duration_ms": 40}
    scan_run.begin(SCAN, "a", now=T0 - timedelta(days=6))
    scan_run.end(SCAN, "a")
    assert scan_run.last(SCAN) is None  # as an earlier release stored it
    scan_run.record(SCAN, run, error="boom", now=T0 - timedelta(days=6))
    known = scan_run.last(SCAN)
    assert known is not None
    assert vars(known).items() >= {**run, "error": "boom", "at": T0 - timedelta(days=6)}.items()
    delete_reports()
    scan_run.begin(SCAN, "b", now=T0)
    assert scan_run.last(SCAN) == known
    assert scan_run.latest(SCAN, limit=5) == [known]
    assert scan_run.last("tasks.other.scan") is None


@pytest.mark.parametrize(
    "last",
    [
        {"_id": 1, "at": "yesterday"},
        "yesterday",
        [{"_id": 1, "at": T0}],
        {"_id": 1, "at": datetime(9999, 1, 1, tzinfo=UTC)},
    ],
)
def test_a_last_run_that_cannot_be_read_or_is_in_the_future_is_ignored_and_replaced(last: Any) -> None:
    collection(scan_run.RUNNING_COLLECTION).insert_one({"_id": SCAN, "last": last})
    assert scan_run.last(SCAN) is None
    scan_run.record(SCAN, {"found": 1}, error=None, now=T0)
    delete_reports()
    replaced = scan_run.last(SCAN)
    assert replaced is not None
    assert (replaced.at, replaced.found, replaced.errors, replaced.error, replaced.noted) == (T0, 1, 0, None, {})


def delete_reports() -> None:
    """Do what the TTL monitor does after a day."""
    collection(scan_run.RUNS_COLLECTION).delete_many({})
