"""The semaphore of a worker's pool: thousands that leave their slot at once, in a row."""

from __future__ import annotations

import sys

import pytest

from queue_manager.batching.semaphore import FlatSemaphore

MANY = sys.getrecursionlimit() * 3


def test_many_that_leave_at_once_are_called_in_their_order() -> None:
    semaphore, called = FlatSemaphore(2), list[int]()

    def leave(number: int) -> None:
        called.append(number)
        semaphore.release()

    for _ in range(2):
        semaphore.acquire(lambda: None)
    for number in range(MANY):
        semaphore.acquire(leave, number)
    assert called == []
    semaphore.release()
    assert called == list(range(MANY))
    assert semaphore.value == 1


def test_an_error_loses_no_slot() -> None:
    semaphore, called = FlatSemaphore(1), list[str]()

    def fail() -> None:
        semaphore.release()
        raise ValueError

    semaphore.acquire(lambda: None)
    semaphore.acquire(fail)
    semaphore.acquire(called.append, "next")
    with pytest.raises(ValueError):
        semaphore.release()
    semaphore.release()
    assert (called, semaphore.value) == (["next"], 1)
