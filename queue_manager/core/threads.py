"""A thread that works while a block runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread


@contextmanager
def in_thread(work: Callable[[Event], object], *, name: str) -> Iterator[None]:
    """Run `work` in a thread while the block runs. Its event is set when the block ends, which then waits for it."""
    is_over = Event()
    thread = Thread(target=work, args=[is_over], name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
