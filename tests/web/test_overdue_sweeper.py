"""The sweeper of a web process: it ends with it, and misses no deadline when its subscription ends."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from queue_manager.web.routes.messages import overdue_sweeper
from queue_manager.web.routes.messages.overdue_sweeper import OverdueSweeper
from services.message_queue.errors import QueueUnavailable


@pytest.fixture(autouse=True)
def folds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each time that the counts are added up."""
    folds: list[str] = []
    monkeypatch.setattr(overdue_sweeper, "fold_counts", lambda: folds.append("fold"))
    return folds


class SilentFeed:
    @contextmanager
    def subscribe(self) -> Any:
        yield SimpleNamespace(next=asyncio.Event().wait)

    async def reader_position(self) -> int:
        return 1


class FeedThatLosesEvents(SilentFeed):
    """Ends the first subscription, and records all of them."""

    def __init__(self, steps: list[str]) -> None:
        self._steps = steps

    @contextmanager
    def subscribe(self) -> Any:
        is_first = "subscribe" not in self._steps
        self._steps.append("subscribe")
        never = asyncio.Event().wait

        async def end() -> list[Any]:
            while self._steps.count("sweep") < 2:  # the one at the start, and that of this subscription
                await asyncio.sleep(0.001)
            return []

        yield SimpleNamespace(next=end if is_first else never)


@pytest.mark.parametrize("turns", range(4))
def test_sweeper_ends_although_a_deadline_is_announced_at_that_moment(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = SimpleNamespace(is_locked=False, next_deadline_in=None)
    monkeypatch.setattr(overdue_sweeper, "sweeper", lambda: SimpleNamespace(sweep=lambda budget: swept))
    monkeypatch.setattr(overdue_sweeper, "other_programs", lambda: SimpleNamespace(heal=lambda: False))

    async def run() -> None:
        async with OverdueSweeper(SilentFeed()) as one:  # type: ignore[arg-type]
            sweep, *_ = one._tasks
            while not one._is_earlier._waiters:  # until the sweep waits for an earlier deadline
                await asyncio.sleep(0.001)
            one._is_earlier.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            sweep.cancel()
            await asyncio.wait([sweep], timeout=10)
            assert sweep.cancelled()

    asyncio.run(run())


def test_a_sweep_follows_each_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds the deadlines that were announced before the subscription."""
    steps: list[str] = []

    def sweep(budget: object) -> SimpleNamespace:
        steps.append("sweep")
        return SimpleNamespace(is_locked=False, next_deadline_in=None)

    monkeypatch.setattr(overdue_sweeper, "sweeper", lambda: SimpleNamespace(sweep=sweep))
    monkeypatch.setattr(overdue_sweeper, "other_programs", lambda: SimpleNamespace(heal=lambda: False))

    async def run() -> None:
        sweeper = OverdueSweeper(FeedThatLosesEvents(steps))  # type: ignore[arg-type]
        sweeper._period = 3600.0
        async with asyncio.timeout(30), sweeper:
            while steps.count("subscribe") < 2 or steps[-1] != "sweep":
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_step_that_fails_is_logged_once_while_the_other_succeeds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steps: list[str] = []

    def sweep(budget: object) -> SimpleNamespace:
        steps.append("sweep")
        return SimpleNamespace(is_locked=False, next_deadline_in=None)

    def heal() -> int:
        steps.append("heal")
        if steps.count("heal") < 4:
            raise QueueUnavailable("The queue's server refused")
        return 0

    monkeypatch.setattr(overdue_sweeper, "sweeper", lambda: SimpleNamespace(sweep=sweep))
    monkeypatch.setattr(overdue_sweeper, "other_programs", lambda: SimpleNamespace(heal=heal))

    async def run() -> None:
        sweeper = OverdueSweeper(SilentFeed())  # type: ignore[arg-type]
        sweeper._period = 0.01
        async with asyncio.timeout(30), sweeper:
            while steps.count("heal") < 4 or "again" not in caplog.text:
                await asyncio.sleep(0.01)

    caplog.set_level("INFO")
    asyncio.run(run())
    logged = [record.msg["event"] for record in caplog.records if isinstance(record.msg, dict)]
    assert [line for line in logged if "started" not in line] == [
        "Messages of other programs could not be checked",
        "Messages of other programs are checked again",
    ]


def test_counts_are_added_up_between_two_sweeps(monkeypatch: pytest.MonkeyPatch, folds: list[str]) -> None:
    swept = SimpleNamespace(is_locked=False, next_deadline_in=None)
    monkeypatch.setattr(overdue_sweeper, "sweeper", lambda: SimpleNamespace(sweep=lambda budget: swept))
    monkeypatch.setattr(overdue_sweeper, "other_programs", lambda: SimpleNamespace(heal=lambda: 0))
    monkeypatch.setattr(overdue_sweeper, "FOLD_INTERVAL", 0.001)

    async def run() -> None:
        sweeper = OverdueSweeper(SilentFeed())  # type: ignore[arg-type]
        sweeper._period = 3600.0
        async with asyncio.timeout(30), sweeper:
            while len(folds) < 3:
                await asyncio.sleep(0.001)

    asyncio.run(run())
