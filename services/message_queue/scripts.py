"""Lua scripts of the queue: each is one file in `lua/`, atomic, and one round trip.

Guarantee: a script is never retried implicitly, so after a lost reply its outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import redis

from queue_manager.core.errors import reason
from queue_manager.core.redis_client import REDIS_OUTAGES
from services.message_queue.errors import QueueFull, QueueUnavailable

_FOLDER = files("services.message_queue") / "lua"
_READS_ENTRIES = ("adopt", "dequeue", "drain", "heal")
_LISTS_MESSAGES = ("list", "survey")


def source(name: str) -> str:
    """Return the full source of a script: its first line, the parts that it needs, and its own code."""
    first, _, own = _text(name).partition("\n")
    parts = ["shared"]
    if name in _READS_ENTRIES + _LISTS_MESSAGES:
        parts.append("other_programs")
    if name in _LISTS_MESSAGES:
        parts.append("reading")
    return "\n".join([first, *(_text(part) for part in parts), own])


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text()


class Scripts:
    """The scripts of one queue on one server. Thread-safe."""

    def __init__(self, client: redis.Redis, *, queue: str) -> None:
        self.client, self.queue = client, queue
        self._loaded: dict[str, Any] = {}

    def run(self, name: str, *arguments: str | bytes | int | float) -> Any:
        """Run a script and return its reply; strings are bytes.

        Raises:
            QueueFull: the server's memory is full and the script would use more.
            QueueUnavailable: the server did not answer.
        """
        if name not in self._loaded:
            self._loaded[name] = self.client.register_script(source(name))
        with _translate_errors():
            return self._loaded[name](keys=[self.queue], args=arguments)


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except redis.exceptions.OutOfMemoryError as error:
        raise QueueFull("The queue's server has no memory left, so it accepts no new message") from error
    except (*REDIS_OUTAGES, redis.exceptions.BusyLoadingError) as error:
        raise QueueUnavailable(f"The queue's server does not answer ({reason(error)})") from error


def streams(queue: str, levels: int) -> list[str]:
    """Return the streams of all priorities, starting at 0."""
    return [queue, *(f"{queue}_p{priority}" for priority in range(1, levels))]
