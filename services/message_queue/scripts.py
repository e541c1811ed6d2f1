"""Lua scripts of the queue: each is one file in `lua/`, atomic, and one round trip.

Guarantee: a script is never retried implicitly, so after a lost reply its outcome is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

import redis
from redis.exceptions import MovedError, NoScriptError

from queue_manager.core.errors import AppError, reason
from queue_manager.core.redis_client import REDIS_OUTAGES, Script, is_refusal, outage
from queue_manager.core.settings import redact_url, settings
from services.message_queue.errors import QueueFull, QueueUnavailable

Argument: TypeAlias = str | bytes | int | float
ScriptCall: TypeAlias = tuple[str, Sequence[Argument]]
"""The name and the arguments of a script."""

BULK_BATCH_SIZE = 100
"""Maximum number of messages per script call, so that it takes less than 10 ms; fewer if payloads are large."""

_FOLDER = files("services.message_queue") / "lua"
_SHARED_PARTS = ("keys", "announcements", "records", "types", "moves", "other_programs", "reading", "delivery")
_DEFINED_NAMES = re.compile(r"local (?:function )?(\w+(?:, \w+)*)")
_COMMENT = re.compile(r" *--.*")
_WORD = re.compile(r"\w+")
_PART = re.compile(r"\n(?=-- ---- )")


def batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the ids, `BULK_BATCH_SIZE` at a time."""
    return (ids[begin : begin + BULK_BATCH_SIZE] for begin in range(0, len(ids), BULK_BATCH_SIZE))


def source(name: str) -> str:
    """Return the full source of a script: its first line, and each of its parts after the shared definitions it needs.

    Redis executes the definitions of a script at every call, up to where it returns; all of them would cost as much as
    ten commands. A line that begins with `-- ----` begins another part; ordinary calls return before it.
    """
    first, _, own = _text(name).partition("\n")
    lines = [first]
    for part in _PART.split(own):
        lines += [definition for definition in _needed_definitions(part) if definition not in lines]
        lines.append(part)
    return "\n".join(lines)


def _needed_definitions(code: str) -> list[str]:
    """Return the shared definitions that `code` uses, directly or not, in their order."""
    needed: list[str] = []
    used = _words(code)
    for definition in reversed(_shared_definitions()):
        names = _DEFINED_NAMES.match(definition)
        if names and used.intersection(names[1].split(", ")):
            needed.insert(0, definition)
            used |= _words(definition)
    return needed


@cache
def _shared_definitions() -> list[str]:
    """Return the top-level statements of the shared parts; each may use those before it."""
    text = "\n".join(map(_text, _SHARED_PARTS))
    return re.split(r"\n(?=local )", text)[1:]


def _words(code: str) -> set[str]:
    return set(_WORD.findall(_COMMENT.sub("", code)))


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


class Scripts:
    """The scripts of one queue on one server. Thread-safe."""

    def __init__(self, client: redis.Redis, *, queue: str) -> None:
        self.client, self.queue = client, queue
        self._loaded: dict[str, Script] = {}

    def run(self, name: str, *arguments: Argument) -> Any:
        """Run a script and return its reply; strings are bytes.

        Raises:
            QueueFull: the server's memory is full and the script would use more.
            QueueUnavailable: the server did not answer, or does not serve the queue now.
        """
        with translate_errors():
            try:
                return self._script(name)(self.client, [self.queue], arguments)
            except MovedError:  # nothing was executed, and the connection is reopened to the new node of the cluster
                return self._script(name)(self.client, [self.queue], arguments)

    def run_for_each(
        self,
        name: str,
        arguments: Sequence[Argument],
        items: Sequence[Sequence[Argument]],
        *,
        most: int = BULK_BATCH_SIZE,
    ) -> Iterator[list[Any]]:
        """Run a script on many items, at most `most` at a time; yield the answers to each slice, in their order.

        After the arguments, it gets the parts of each item. It answers the first items, at least one.
        """
        done = 0
        while done < len(items):
            answers = self.run(name, *arguments, *(part for item in items[done : done + most] for part in item))
            yield answers
            done += len(answers)

    def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts in one round trip, and return the reply or the error of each. Raises `QueueUnavailable`."""
        with translate_errors(), self.client.pipeline(transaction=False) as pipeline:
            for name, arguments in calls:
                pipeline.evalsha(self._script(name).sha, 1, self.queue, *arguments)
            replies = pipeline.execute(raise_on_error=False)
        return [
            self._repeat(call, reply) if isinstance(reply, redis.RedisError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    def _repeat(self, call: ScriptCall, error: redis.RedisError) -> Any:
        """Return the reply to a script that the server did not know or serve, or the error of one that failed."""
        try:
            with translate_errors():
                if isinstance(error, NoScriptError | MovedError):
                    return self.run(call[0], *call[1])
                raise error
        except (AppError, redis.RedisError) as translated:
            return translated

    def _script(self, name: str) -> Script:
        if name not in self._loaded:
            self._loaded[name] = Script(source(name))
        return self._loaded[name]


def server_url() -> str:
    """Return the URL of the queue's Redis server."""
    chosen = settings()
    return chosen.qm_queue_redis_url or chosen.redis_url


def server_name() -> str:
    """Return how errors name the queue's server: by its URL, without the password."""
    return f"The queue's server at {redact_url(server_url())}"


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise QueueFull or QueueUnavailable instead of the errors of redis-py."""
    try:
        yield
    except redis.exceptions.OutOfMemoryError as error:
        raise QueueFull(f"{server_name()} has no memory left, so it accepts no new message") from error
    except (*REDIS_OUTAGES, redis.exceptions.BusyLoadingError) as error:
        raise QueueUnavailable(f"{server_name()} {outage(error)}") from error
    except redis.ResponseError as error:
        if is_refusal(error):
            raise QueueUnavailable(f"{server_name()} refused ({reason(error)})") from error
        raise


def streams(queue: str, levels: int) -> list[str]:
    """Return the streams of all priorities, starting at 0."""
    return [queue, *(f"{queue}_p{priority}" for priority in range(1, levels))]
