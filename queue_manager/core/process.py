"""Processes: what each makes for itself, their names and memory, garbage collection, and how SIGTERM ends them."""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock, current_thread, main_thread
from typing import Generic, NoReturn, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Makes one object per process, such as a client, on first use, and never shares it with a child. Thread-safe."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._lock = Lock()
        # A child forked while another thread holds the lock would wait for it forever.
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self) -> T:
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]

    def take(self) -> T | None:
        """Return the client, if there is one, and remove it; the next use creates another."""
        with self._lock:
            return self._made.pop() if self._made else None

    def _forget(self) -> None:
        self._made, self._lock = [], Lock()


def process_name(pid: int | None = None) -> str:
    """Return host and process, as `host:pid`, by default of this process."""
    return f"{socket.gethostname()}:{pid or os.getpid()}"


def has_ended(name: str) -> bool:
    """Return True if `name`, as `host:pid`, was a process of this machine and has ended. Of others it is unknown."""
    host, _, pid = name.rpartition(":")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def resident_memory(pid: int) -> int | None:
    """Return the resident memory of a process of this machine in bytes, shared pages included.

    `None` if the process is gone, or the operating system has no `/proc`.
    """
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def end_at_sigterm() -> None:
    """Raise SystemExit at SIGTERM, whose default action does not end the first process of a container.

    Changes nothing in a thread that is not the main one, which cannot set a handler.
    """
    if current_thread() is main_thread():
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, _: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


# A worker keeps thousands of messages alive. With Python's default, every 700 new objects trigger a collection, many of
# them a full one, which takes a fifth of a busy worker's time.
GC_THRESHOLD = 50_000  # net new objects that trigger a collection of the youngest generation
# Of a pool process, which keeps nothing alive between two tasks. Its garbage is large: that of an exception holds the
# frames of the task, and Celery adds some 300 objects that describe them.
POOL_GC_THRESHOLD = 10_000


def reduce_garbage_collection(*, threshold: int = GC_THRESHOLD) -> None:
    """Freeze existing objects and raise the GC threshold. Call once after start-up of a long-lived process.

    Python collects its oldest generation only when that has grown by a quarter since the last full collection. The one
    below makes it start from nothing: otherwise the frozen objects count, and garbage stays for hours.
    """
    gc.freeze()
    gc.collect()
    gc.set_threshold(threshold, 10, 10)
