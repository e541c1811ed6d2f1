"""Broker messages that no worker can make anything of, kept for people with the reason.

qm:dead-letters     a list, the newest first: {"at", "queue", "reason", "message"}; `at` in seconds since 1970
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha1

from kombu.utils.json import dumps
from redis import Redis

from queue_manager.broker import keys, scripts
from queue_manager.broker.envelope import NotAMessage, read

NAME = "qm:dead-letters"
KEPT = 10_000
ID_DIGITS = 12
STOCK_STEPS = (0, 3, 6, 9)
PUT_ASIDE = "put_aside"
"""The property of a message that failed once when it was handed over."""
LONGEST_REASON = 500
_ENTRY = re.compile(rb'\[(.*), "[^"]*", ("(?:[^"\\]|\\.)*")\]', re.DOTALL)  # message, exchange, routing key: the queue


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message as it was on the wire; bytes that are no UTF-8 are written as `\\x..`."""

    at: float
    queue: str
    reason: str
    message: str
    id: str = ""
    """The first digits of a hash of the stored letter; `""` of one that is not stored."""


class CannotReplay(ValueError):
    """Says why a message cannot be put back."""


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
    stored = {name: value for name, value in asdict(letter).items() if name != "id"}
    scripts.MOVE(client, [*held_in, NAME], [tag, json.dumps(stored), KEPT])
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
    return [_letter(stored) for stored in client.lrange(NAME, 0, limit - 1)]


def _letter(stored: bytes | str) -> DeadLetter:
    raw = stored.encode() if isinstance(stored, str) else stored
    id = sha1(raw, usedforsecurity=False).hexdigest()[:ID_DIGITS]
    return DeadLetter(**json.loads(stored), id=id)


def replay(client: Redis, ids: Collection[str] | None = None) -> Iterator[tuple[DeadLetter, str]]:
    """Put messages back into their queues, the oldest first: those with these ids, or all.

    Returns each letter with the reason why it was refused; `""`: it was put back. One that somebody else has put back
    meanwhile is left out. Raises what redis-py raises.
    """
    for stored in reversed(client.lrange(NAME, 0, -1)):
        letter = _letter(stored)
        if ids is not None and letter.id not in ids:
            continue
        try:
            name, message = _back(letter)
        except CannotReplay as error:
            yield letter, str(error)
        else:
            if scripts.REPLAY(client, [NAME, name], [stored, message]):
                yield letter, ""


def _back(letter: DeadLetter) -> tuple[str, str]:
    """Return the list that a message goes to, and the message as it is put there."""
    if not letter.queue:
        raise CannotReplay("its queue is not known")
    try:
        message = read(letter.message.encode())
    except (NotAMessage, UnicodeEncodeError) as error:
        raise CannotReplay(f"no worker could read it: {error!s:.200}") from None
    priority = message["properties"].get("priority")
    # The next step that every worker reads, also one of another application.
    step = max(step for step in STOCK_STEPS if step <= priority) if priority in keys.PRIORITIES else 0
    if message["properties"].pop(PUT_ASIDE, None) is None:
        return keys.list_of(letter.queue, step), letter.message
    return keys.list_of(letter.queue, step), dumps(message)


def clear(client: Redis) -> int:
    """Delete all of them; return how many there were."""
    with client.pipeline() as pipe:
        pipe.llen(NAME)
        pipe.delete(NAME)
        found, _ = pipe.execute()
    return int(found)
