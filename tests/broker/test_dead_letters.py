"""Dead letters are replayed, deleted and restored in slices while the list changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis, ResponseError

from dev.servers import Valkey
from queue_manager.broker import dead_letters
from queue_manager.broker.dead_letters import DEAD_LETTERS, LetterCopies
from queue_manager.broker.old_keys import OldKeys

SLICE = 4


class Reader(Redis):
    """A client that checks how much is read at once, and calls `before_read` first."""

    before_read: Callable[[], object] = staticmethod(lambda: None)
    reads = 0

    def lrange(self, name: Any, start: int, end: int) -> Any:
        self.before_read()
        found = super().lrange(name, start, end)
        assert len(found) <= SLICE
        self.reads += 1
        return found


@pytest.fixture
def reader(server: Valkey, client: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setattr(dead_letters, "LETTERS_PER_READ", SLICE)
    with Reader.from_url(server.url) as reader:
        yield reader


def stored(number: int, queue: str = "q") -> str:
    properties = {"delivery_tag": str(number), "delivery_info": {"exchange": "", "routing_key": queue}}
    message = {"body": "", "content-type": "x", "content-encoding": "x", "headers": {}, "properties": properties}
    return json.dumps({"at": number, "queue": queue, "reason": "r", "message": json.dumps(message)})


def add(client: Redis, *numbers: int, queue: str = "q") -> None:
    for number in numbers:
        client.lpush(DEAD_LETTERS, stored(number, queue))


def left(client: Redis) -> list[int]:
    """Return the numbers of the dead letters, oldest first."""
    return [json.loads(one)["at"] for one in reversed(client.lrange(DEAD_LETTERS, 0, -1))]


def requeued(client: Redis) -> list[int]:
    """Return the numbers of the messages that were requeued, in this order."""
    return [int(json.loads(one)["properties"]["delivery_tag"]) for one in reversed(client.lrange("q", 0, -1))]


def ids(*numbers: int) -> set[str]:
    return {dead_letters._id(stored(number)) for number in numbers}


def test_dead_letters_are_replayed_oldest_first_and_those_added_meanwhile_are_kept(
    client: Redis, reader: Reader
) -> None:
    add(client, *range(10))
    came = iter(range(100, 200))
    reader.before_read = lambda: add(client, next(came))
    result = list(dead_letters.replay(reader))
    assert [(letter.at, refused) for letter, refused in result] == [(number, "") for number in range(10)]
    assert requeued(client) == [*range(10)]
    assert left(client) == [*range(100, 100 + reader.reads)]


def test_replay_by_id_finds_letters_among_others_and_names_refused_ones(client: Redis, reader: Reader) -> None:
    add(client, *range(20))
    add(client, 20, 21, 22, queue="")
    add(client, *range(23, 30))
    refused = {dead_letters._id(stored(number, "")) for number in (20, 22)}
    came = iter(range(100, 200))
    reader.before_read = lambda: add(client, next(came))
    result = [(letter.at, refused) for letter, refused in dead_letters.replay(reader, ids(1, 7, 8, 15, 29) | refused)]
    unknown = "its queue is not known"
    assert result == [(1, ""), (7, ""), (8, ""), (15, ""), (20, unknown), (22, unknown), (29, "")]
    assert requeued(client) == [1, 7, 8, 15, 29]
    assert left(client)[:25] == [number for number in range(30) if number not in (1, 7, 8, 15, 29)]


def test_dead_letters_removed_during_a_replay_do_not_hide_others(client: Redis, reader: Reader) -> None:
    add(client, *range(30))
    removed = 0

    def remove() -> None:
        nonlocal removed
        if reader.reads in (2, 3, 6):
            client.rpop(DEAD_LETTERS, 2)
            removed += 2

    reader.before_read = remove
    chosen = (0, 1, 9, 10, 11, 12, 13, 14, 15, 16, 28, 29)
    assert [letter.at for letter, _ in dead_letters.replay(reader, ids(*chosen))] == [*chosen]
    assert requeued(client) == [*chosen]
    assert removed == 6


def test_replay_ends_if_all_dead_letters_are_removed_meanwhile(client: Redis, reader: Reader) -> None:
    add(client, *range(10))
    reader.before_read = lambda: client.delete(DEAD_LETTERS) if reader.reads else None
    assert list(dead_letters.replay(reader, ids(9))) == []


class Archive:
    """Keeps the dead letters that are deleted, like the archive of an action, and calls `before_deletion` first."""

    def __init__(self, before_deletion: Callable[[], object] = lambda: None) -> None:
        self._before_deletion = before_deletion
        self.slices: list[LetterCopies] = []

    def keep(self, letters: LetterCopies) -> Callable[[LetterCopies], None]:
        self.slices.append(letters)
        self._before_deletion()

        def keep_only(some: LetterCopies) -> None:
            self.slices[-1] = some

        return keep_only

    def numbers(self) -> list[int]:
        return [json.loads(one["letter"])["at"] for letters in self.slices for one in letters]

    def restore(self, client: Redis) -> int:
        return sum(dead_letters.restore(client, letters) for letters in reversed(self.slices))


def test_cleared_dead_letters_are_archived_first_and_restored_in_order(client: Redis, reader: Reader) -> None:
    add(client, *range(10))
    came = iter(range(100, 200))
    archive = Archive(lambda: add(client, next(came)))
    reader.before_read = lambda: add(client, next(came)) if len(archive.slices) < 2 else None
    assert sum(dead_letters.clear(reader, keep=archive.keep)) == 10
    assert archive.numbers() == [*range(10)]
    later = left(client)
    assert later == [*range(100, next(came))]

    for restored in (10, 0):
        assert archive.restore(reader) == restored
        assert left(client) == [*range(10), *later]


def test_dead_letters_removed_during_a_clear_do_not_hide_others(client: Redis, reader: Reader) -> None:
    add(client, *range(10))
    archive = Archive()
    removed: list[int] = []

    def before_read() -> None:
        add(client, 100 + reader.reads)
        if reader.reads in (1, 4):  # of the ids, and of the letters
            removed.append(left(client)[0])
            client.rpop(DEAD_LETTERS)

    reader.before_read = before_read
    assert sum(dead_letters.clear(reader, keep=archive.keep)) == 8
    assert removed == [0, 5]
    assert archive.numbers() == [1, 2, 3, 4, 6, 7, 8, 9]
    assert left(client) == [*range(100, 100 + reader.reads)]


def test_dead_letters_replayed_during_a_clear_are_not_restored(client: Redis, reader: Reader) -> None:
    add(client, *range(10))
    archive = Archive(lambda: list(dead_letters.replay(client, ids(1, 7))))

    assert sum(dead_letters.clear(reader, keep=archive.keep)) == 8

    assert requeued(client) == [1, 7]
    assert archive.restore(reader) == 8
    assert left(client) == [0, 2, 3, 4, 5, 6, 8, 9]


def test_clear_deletes_no_dead_letter_that_cannot_be_archived(client: Redis, reader: Reader) -> None:
    add(client, *range(10))

    def before_deletion() -> None:
        if len(archive.slices) == 2:
            raise ConnectionError

    archive = Archive(before_deletion)
    with pytest.raises(ConnectionError):
        list(dead_letters.clear(reader, keep=archive.keep))
    assert left(client) == [*range(4, 10)]
    assert set(archive.numbers()) >= {0, 1, 2, 3}
    assert archive.restore(reader) == 4
    assert left(client) == [*range(10)]


def test_message_stays_unacknowledged_if_its_dead_letter_is_refused(client: Redis) -> None:
    client.hset("unacked", "tag", '["message", "", "q"]')
    client.zadd("unacked_index", {"tag": 1})
    client.set(DEAD_LETTERS, "a text of another program")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        dead_letters.move_unacked(client, "tag", reason="r", unacked_keys=("unacked", "unacked_index"))
    assert client.hkeys("unacked") == client.zrange("unacked_index", 0, -1) == [b"tag"]


def test_dead_letter_stays_if_its_queue_refuses_the_message(client: Redis) -> None:
    add(client, 1)
    client.set("q", "a text of another program")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        list(dead_letters.replay(client))
    assert left(client) == [1]


def test_dead_letter_that_was_deleted_meanwhile_is_not_requeued(client: Redis, reader: Reader) -> None:
    add(client, 1, 2)
    replaying = dead_letters.replay(reader)
    assert next(replaying)[0].at == 1
    client.delete(DEAD_LETTERS)
    assert list(replaying) == []
    assert requeued(client) == [1]


def test_message_stays_in_the_queue_of_release_0_1_if_its_own_queue_refuses_it(client: Redis) -> None:
    message = json.dumps({"headers": {"task": "t"}})
    client.lpush("celery", message)
    client.set("q", "a text of another program")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        OldKeys({"t": "q"}).empty(client)
    assert client.lrange("celery", 0, -1) == [message.encode()]
