"""Broker messages that no worker can make anything of, kept for people with the reason.

qm:dead-letters     a list, the newest first: {"at", "queue", "reason", "message"}; `at` in seconds since 1970
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass

from redis import Redis

from queue_manager.transport import scripts

NAME = "qm:dead-letters"
KEPT = 10_000
LONGEST_REASON = 500
_ENTRY = re.compile(rb'\[(.*), "[^"]*", ("(?:[^"\\]|\\.)*")\]', re.DOTALL)  # message, exchange, routing key: the queue


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message as it was on the wire; bytes that are no UTF-8 are written as `\\x..`."""

    at: float
    queue: str
    reason: str
    message: str


def bury(client: Redis, tag: str, *, reason: str, held_in: tuple[str, str]) -> DeadLetter | None:
    """Move what `tag` holds in the hash and the index `held_in` to the dead letters; return it.

    Returns `None` if it holds nothing any more: somebody else has put it back.
    """
    unacked, _ = held_in
    entry = client.hget(unacked, tag)
    if not isinstance(entry, bytes):
        return None
    message, queue = _parts(entry)
    text = message.decode("utf-8", "backslashreplace")
    letter = DeadLetter(at=time.time(), queue=queue, reason=reason[:LONGEST_REASON], message=text)
    scripts.MOVE(client, [*held_in, NAME], [tag, json.dumps(asdict(letter)), KEPT])
    return letter


def _parts(entry: bytes) -> tuple[bytes, str]:
    """Return the message of an entry and its queue; of what is no entry, all of it."""
    parts = _ENTRY.fullmatch(entry)
    try:
        return (parts[1], json.loads(parts[2])) if parts else (entry, "")
    except ValueError:
        return entry, ""


def count(client: Redis) -> int:
    return int(client.llen(NAME))


def latest(client: Redis, *, limit: int = 50) -> list[DeadLetter]:
    """Return the newest dead letters."""
    return [DeadLetter(**json.loads(letter)) for letter in client.lrange(NAME, 0, limit - 1)]


def clear(client: Redis) -> int:
    """Delete all of them; return how many there were."""
    with client.pipeline() as pipe:
        pipe.llen(NAME)
        pipe.delete(NAME)
        found, _ = pipe.execute()
    return int(found)
