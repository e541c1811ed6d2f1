"""Dead letters of the broker: malformed, rejected and failing messages, kept with the reason.

Key: `qm:dead-letters`, a list, newest first, of {"at", "queue", "reason", "message"}; `at` in Unix seconds.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha1
from typing import TypeAlias

from kombu.utils.json import dumps
from redis import Redis

from queue_manager.broker import keys, scripts
from queue_manager.broker.envelope import NotAMessage, read

DEAD_LETTERS = "qm:dead-letters"
MAX_DEAD_LETTERS = 10_000
MAX_DEAD_LETTER_REASON_LENGTH = 500  # characters
ID_DIGITS = 12
LETTERS_PER_READ = 500
STOCK_PRIORITY_STEPS = (0, 3, 6, 9)
FAILED_ONCE = "put_aside"
"""Property of a message that failed dispatch once."""
# An entry is [message, exchange, routing key]; the routing key is the queue.
_ENTRY = re.compile(rb'\[(.*), "[^"]*", ("(?:[^"\\]|\\.)*")\]', re.DOTALL)

LetterCopies: TypeAlias = Sequence[Mapping[str, str]]
KeepLetters: TypeAlias = Callable[[LetterCopies], Callable[[LetterCopies], object]]
"""Stores copies of dead letters before they are deleted. Returns a function that keeps only those that were."""


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message as it was on the wire; bytes that are not UTF-8 are written as `\\x..`."""

    at: float
    queue: str
    reason: str
    message: str
    id: str = ""
    """First digits of a hash of the stored letter; `""` before it is stored."""


class CannotReplay(ValueError):
    """A message cannot be replayed; the text is the reason."""


def move_unacked(client: Redis, tag: str, *, reason: str, unacked_keys: tuple[str, str]) -> DeadLetter | None:
    """Move the message of `tag` to the dead letters; return the letter, or `None` if it was requeued meanwhile.

    `unacked_keys` are the hash and the sorted set in which the message is registered.
    """
    entry = client.hget(unacked_keys[0], tag)
    if not isinstance(entry, bytes):
        return None
    message, queue = _message_and_queue(entry)
    text = message.decode("utf-8", "backslashreplace")
    letter = DeadLetter(at=time.time(), queue=queue, reason=reason[:MAX_DEAD_LETTER_REASON_LENGTH], message=text)
    stored = {name: value for name, value in asdict(letter).items() if name != "id"}
    scripts.MOVE_UNACKED(client, [*unacked_keys, DEAD_LETTERS], [tag, json.dumps(stored), MAX_DEAD_LETTERS])
    return letter


def _message_and_queue(entry: bytes) -> tuple[bytes, str]:
    """Split an entry; return all of it, and no queue, if it is malformed."""
    parts = _ENTRY.fullmatch(entry)
    try:
        return (parts[1], json.loads(parts[2])) if parts else (entry, "")
    except ValueError:
        return entry, ""


def count(client: Redis) -> int:
    return int(client.llen(DEAD_LETTERS))


def latest(client: Redis, *, limit: int = 50) -> list[DeadLetter]:
    """Return the newest dead letters. Read in slices, because they contain whole messages."""
    letters: dict[str, DeadLetter] = {}  # by id: new ones shift the others into the next slice
    for begin in range(0, limit, LETTERS_PER_READ):
        end = min(begin + LETTERS_PER_READ, limit)
        found = [_letter(stored) for stored in client.lrange(DEAD_LETTERS, begin, end - 1)]
        letters |= {letter.id: letter for letter in found}
        if len(found) < end - begin:
            break
    return [*letters.values()]


def _letter(stored: bytes | str) -> DeadLetter:
    return DeadLetter(**json.loads(stored), id=_id(stored))


def _id(stored: bytes | str) -> str:
    raw = stored.encode() if isinstance(stored, str) else stored
    return sha1(raw, usedforsecurity=False).hexdigest()[:ID_DIGITS]


def replay(client: Redis, ids: Collection[str] | None = None) -> Iterator[tuple[DeadLetter, str]]:
    """Requeue the dead letters with these ids, or all of them, oldest first.

    Yields each letter with the reason why it was refused, or `""` if it was requeued. A letter that was replayed or
    deleted meanwhile is skipped. Raises the errors of redis-py.
    """
    staying: set[str] = set()
    for stored in _oldest_first(client, staying):
        letter = _letter(stored)
        if ids is not None and letter.id not in ids:
            staying.add(letter.id)
            continue
        try:
            name, message = _list_and_message(letter)
        except CannotReplay as error:
            staying.add(letter.id)
            yield letter, str(error)
        else:
            if scripts.REPLAY_DEAD_LETTER(client, [DEAD_LETTERS, name], [stored, message]):
                yield letter, ""


def _oldest_first(client: Redis, staying: Collection[str]) -> Iterator[bytes | str]:
    """Yield the stored letters, read in slices; the caller removes each or adds its id to `staying`.

    Positions count from the end of the list, because new letters shift the others.
    """
    left = count(client)  # later ones are not read: a message that is replayed may fail again
    behind = 0  # how many at the end of the list are staying
    while left:
        # Begin with the last one that stays: if it has moved, another process has removed letters behind it.
        last = max(behind, 1)
        found = client.lrange(DEAD_LETTERS, 1 - last - LETTERS_PER_READ, -last)
        if behind and (not found or _id(found.pop()) not in staying):
            behind = max(behind - LETTERS_PER_READ, 0)
            continue
        if not found:
            return
        for stored in reversed(found):
            id = _id(stored)
            if id not in staying:
                if not left:
                    return
                left -= 1
                yield stored
            behind += id in staying


def _list_and_message(letter: DeadLetter) -> tuple[str, str]:
    """Return the list that a message is pushed on, and the message without its failure. Raises `CannotReplay`."""
    if not letter.queue:
        raise CannotReplay("its queue is not known")
    try:
        message = read(letter.message.encode())
    except (NotAMessage, UnicodeEncodeError) as error:
        raise CannotReplay(f"no worker could read it: {error!s:.200}") from None
    priority = message["properties"].get("priority")
    # The nearest step that every worker reads, including workers of other applications.
    step = max(step for step in STOCK_PRIORITY_STEPS if step <= priority) if priority in keys.PRIORITIES else 0
    failed_once = message["properties"].pop(FAILED_ONCE, None) is not None
    return keys.list_of(letter.queue, step), dumps(message) if failed_once else letter.message


def clear(client: Redis, *, keep: KeepLetters | None = None) -> Iterator[int]:
    """Delete all dead letters in slices, oldest first; yield the number in each. Those added meanwhile are kept.

    With `keep`, it is called with what is deleted, for `restore`. A large `restore` at the same time may end it early.
    """
    ids = {_id(letter) for letters in _newest_first(client) for letter in letters}
    # From the end, where each is found at once.
    while oldest := [one for one in client.lrange(DEAD_LETTERS, -LETTERS_PER_READ, -1) if _id(one) in ids]:
        copies = [{"letter": _text(letter)} for letter in reversed(oldest)]
        keep_only = None if keep is None else keep(copies)
        with client.pipeline(transaction=False) as pipe:
            for copy in copies:
                pipe.lrem(DEAD_LETTERS, -1, copy["letter"])
            removed = pipe.execute()
        if keep_only is not None and sum(removed) < len(copies):  # others were replayed or deleted meanwhile
            keep_only([copy for copy, count in zip(copies, removed, strict=True) if count])
        yield sum(removed)


def restore(client: Redis, kept: LetterCopies) -> int:
    """Add deleted dead letters again, behind the newer ones; return the number of those that did not exist.

    Several slices must be restored in the reverse order of their deletion.
    """
    letters = dict.fromkeys(one["letter"] for one in reversed(kept))
    for present in _newest_first(client):
        for letter in present:
            letters.pop(letter, None)
    if letters:
        client.rpush(DEAD_LETTERS, *letters)
    return len(letters)


def _newest_first(client: Redis) -> Iterator[list[str]]:
    """Yield the stored letters in slices.

    Positions count from the end of the list: neither letters that are added meanwhile nor letters that are removed from
    the end hide another; they may repeat one.
    """
    for left in range(count(client), 0, -LETTERS_PER_READ):
        if letters := client.lrange(DEAD_LETTERS, -left, min(LETTERS_PER_READ - left, 0) - 1):
            yield [*map(_text, letters)]


def _text(stored: bytes | str) -> str:
    return stored.decode() if isinstance(stored, bytes) else stored
