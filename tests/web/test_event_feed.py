"""A listener of a feed: its buffer is bounded, and it gets no events after a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from queue_manager.web.live import event_feed
from queue_manager.web.live.event_feed import (
    MAX_BUFFER_SIZE,
    Event,
    EventSource,
    EventStream,
    Feed,
    Listener,
    ReadBatch,
    ReaderPosition,
    StartPosition,
)
from queue_manager.web.routes.systems import events
from queue_manager.web.routes.systems.events import OverviewStates
from tests.documented import DOCS


def event(position: int, size: int = 2) -> Event[int]:
    return Event(position, str(position), "update", b"0" * size)


def received(listener: Listener[int]) -> list[int]:
    return [one.position for one in asyncio.run(listener.next())]


def test_waiting_events_are_received_once_and_in_order() -> None:
    listener = Listener[int](latest_only=False)
    listener.add([event(1), event(2)])
    listener.add([event(3)])
    assert received(listener) == [1, 2, 3]
    listener.add([event(4)])
    assert received(listener) == [4]


def test_a_listener_of_states_gets_only_the_latest() -> None:
    listener = Listener[int](latest_only=True)
    listener.add([event(1), event(2)])
    listener.add([event(3, MAX_BUFFER_SIZE)])
    listener.add([event(4, MAX_BUFFER_SIZE)])
    assert received(listener) == [4]


def test_a_listener_whose_buffer_overflows_gets_nothing_more() -> None:
    listener = Listener[int](latest_only=False)
    listener.add([event(1), event(2, MAX_BUFFER_SIZE)])
    assert listener.is_ended
    listener.add([event(3)])
    assert received(listener) == []


class OneEvent(EventSource[int]):
    """A source of one live event, whose preparation is an error."""

    title = server = "one event"

    async def start(self, last: str | None, reader_position: ReaderPosition[int]) -> StartPosition[int]:
        raise NotImplementedError

    def history(self, after: int, until: int) -> AsyncGenerator[Sequence[Event[int]], None]:
        raise NotImplementedError

    async def live(self, after: int | None) -> AsyncGenerator[ReadBatch[int], None]:
        yield ReadBatch(1, [event(1)])
        await asyncio.Event().wait()

    async def prepare(self, events: Sequence[Event[int]]) -> Sequence[Event[int]]:
        raise AssertionError("there is no client")


def test_a_listener_within_the_process_needs_no_encoder() -> None:
    async def listen() -> list[Event[int]]:
        async with Feed(OneEvent(), asyncio.Event()) as feed:
            with feed.subscribe() as listener:
                return await asyncio.wait_for(listener.next(), 10)

    assert [one.position for one in asyncio.run(listen())] == [1]


def test_an_overview_that_was_read_before_a_change_is_not_shown_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_during_a_change() -> list[Any]:
        loop = asyncio.get_running_loop()
        before, after = loop.create_future(), loop.create_future()
        readings = [before, after]
        monkeypatch.setattr(events, "read", lambda: readings.pop(0))
        monkeypatch.setattr(events, "overview_of", lambda found: found)
        states = OverviewStates()
        shown = [asyncio.create_task(states.state())]
        await eventually_read(readings, 1)
        states.expire()
        shown.append(asyncio.create_task(states.state()))
        await eventually_read(readings, 0)
        before.set_result("before")
        after.set_result("after")
        return await asyncio.gather(*shown)

    async def eventually_read(readings: list[Any], left: int) -> None:
        while len(readings) > left:
            await asyncio.sleep(0)

    assert asyncio.run(read_during_a_change()) == ["after", "after"]


class Broken(OneEvent):
    """A source that cannot be read."""

    async def live(self, after: int | None) -> AsyncGenerator[ReadBatch[int], None]:
        if after is None:
            raise OSError("no server")
        yield ReadBatch(after)


def test_listeners_of_a_source_that_stays_away_are_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MAX_OUTAGE", 0.1)

    async def listen() -> list[Event[int]]:
        async with Feed(Broken(), asyncio.Event()) as feed:
            with feed.subscribe() as listener:
                return await asyncio.wait_for(listener.next(), 10)

    assert asyncio.run(listen()) == []


def test_pings_are_as_frequent_as_the_documentation_tells_clients() -> None:
    async def one() -> AsyncGenerator[bytes]:
        yield b""

    interval = EventStream(one()).ping_interval
    assert f"At least every {interval:g} s, a stream sends" in (DOCS / "reference" / "events.md").read_text()
