"""Failures over HTTP with 100,000 of each kind: reads are bounded and cached."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import pytest

from models.job import JobState
from services.failures import MAX_FAILURES
from tests import bulk_data
from tests.any_jobs import MODULE as JOBS_MODULE
from tests.real_servers import Servers
from tests.web.queue_client import empty_queue

pytestmark = pytest.mark.scale

COUNT, READINGS = 100_000, 20
MAX_ANSWER = 200_000  # characters


def test_the_newest_of_100_000_failures_of_each_kind_are_grouped(
    clean: Servers, tmp_path_factory: pytest.TempPathFactory, figure: Callable[[str], None]
) -> None:
    queue = empty_queue(clean, tmp_path_factory, QM_JOBS="true", JOBS_IMPORTS=JOBS_MODULE)
    bulk_data.failed_rooms(COUNT, clean.valkey.url)
    bulk_data.jobs(COUNT, JobState.FAILURE)
    bulk_data.messages(COUNT, queue, are_dead=True)

    def read() -> tuple[float, str]:
        began = time.monotonic()
        answer = queue.get("/failures")
        assert answer.status == 200, answer.text
        assert len(answer.text) < MAX_ANSWER
        lists = {one["title"]: (one["read"], one["is_complete"]) for one in answer.body["lists"]}
        assert sum(group["count"] for group in answer.body["groups"]) == sum(count for count, _ in lists.values())
        for title in ("Rooms", "Messages", "Jobs"):
            assert lists[title][0] <= MAX_FAILURES
            assert not lists[title][1], "it must say that there are more"
        return 1000 * (time.monotonic() - began), answer.body["server_time"]

    (first, _), *others = [read() for _ in range(READINGS)]
    again = median(duration for duration, _ in others)
    figure(f"GET /api/failures of 3 x {COUNT:,}: {first:.0f} ms when they are read, {again:.0f} ms (median) after that")
    assert again < first, "an answer within ten times the duration of a reading must not read them again"
