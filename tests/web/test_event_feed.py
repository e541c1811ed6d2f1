"""A listener: its buffer is bounded, and it never gets events after a gap."""

from __future__ import annotations

import asyncio

from queue_manager.web.live.event_feed import MAX_BUFFER_SIZE, Event, Listener


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


def test_a_listener_of_states_gets_the_latest() -> None:
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
