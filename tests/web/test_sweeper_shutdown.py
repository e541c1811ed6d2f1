"""The sweeper of a web process ends with it, also if a deadline becomes known at that moment."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from queue_manager.web.routes.messages import overdue_sweeper
from queue_manager.web.routes.messages.overdue_sweeper import OverdueSweeper


class SilentFeed:
    @contextmanager
    def subscribe(self) -> Any:
        yield SimpleNamespace(next=asyncio.Event().wait)


@pytest.mark.parametrize("turns", range(4))
def test_sweeper_ends_though_a_deadline_is_announced_at_that_moment(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = SimpleNamespace(is_locked=False, next_deadline_in=None)
    monkeypatch.setattr(overdue_sweeper, "sweeper", lambda: SimpleNamespace(sweep=lambda budget: swept))
    monkeypatch.setattr(overdue_sweeper, "other_programs", lambda: SimpleNamespace(heal=lambda: False))

    async def run() -> None:
        async with OverdueSweeper(SilentFeed()) as one:  # type: ignore[arg-type]
            sweep, *_ = one._tasks
            await asyncio.sleep(0.3)
            one._is_earlier.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            sweep.cancel()
            await asyncio.wait([sweep], timeout=10)
            assert sweep.cancelled()

    asyncio.run(run())
