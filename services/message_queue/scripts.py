"""The queue's scripts: each is one file in `lua/`, one round trip, and atomic.

Guarantee: a script that was sent is never sent again behind the caller's back, so a lost reply means "perhaps".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.resources import files
from typing import Any

import redis

from queue_manager.core.clock import milliseconds
from queue_manager.core.errors import reason
from queue_manager.core.redis_client import OUTAGES
from services.message_queue.errors import QueueFull, QueueUnavailable

_FOLDER = files("services.message_queue") / "lua"
_SHARED = "shared"
_READING = "reading"
_READERS = ("list", "survey", "read")


def source(name: str) -> str:
    """Return the whole text of a script: its first line, what all share, what those that read share, and its own."""
    first, _, own = _text(name).partition("\n")
    shared = [_SHARED, _READING] if name in _READERS else [_SHARED]
    return "\n".join([first, *(_text(part) for part in shared), own])


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text()


class Scripts:
    """The scripts on one server, for the queue of one name. Any number of threads may use it."""

    def __init__(self, client: redis.Redis, *, queue: str) -> None:
        self.client, self.queue = client, queue
        self._loaded: dict[str, Any] = {}

    def run(self, name: str, *arguments: str | bytes | int | float) -> Any:
        """Run a script and return its answer, texts as bytes.

        Raises:
            QueueFull: the server's memory is full and the script would add to it.
            QueueUnavailable: the server did not answer.
        """
        if name not in self._loaded:
            self._loaded[name] = self.client.register_script(source(name))
        with _translated():
            return self._loaded[name](keys=[self.queue], args=arguments)

    def take_turn(self, what: str, *, every: timedelta) -> bool:
        """Tell whether it is time for `what` again, for one of all who ask. Raises like `run`."""
        return bool(self.run("take_turn", what, milliseconds(every)))


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except redis.exceptions.OutOfMemoryError as error:
        raise QueueFull("The queue's server has no memory left, so it takes no new message") from error
    except (*OUTAGES, redis.exceptions.BusyLoadingError) as error:
        raise QueueUnavailable(f"The queue's server does not answer ({reason(error)})") from error
