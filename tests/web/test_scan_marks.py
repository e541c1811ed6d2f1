"""Marks of running scans: begun once, ended by their own run, and by their lease."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

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
