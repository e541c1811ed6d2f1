"""Deleted messages are restored from the records that were read before; what changed meanwhile is read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from services.message_queue import NewMessage
from tests.services.message_queue.message_lab import Lab
from tests.services.message_queue.test_slices import MANY, enqueue


class Kept(list[Mapping[str, Any]]):
    """Records that a test keeps, instead of the archive."""

    def __call__(self, records: Sequence[Mapping[str, Any]]) -> Callable[[Sequence[Mapping[str, Any]]], None]:
        begin = len(self)
        self.extend(records)

        def keep_only(some: Sequence[Mapping[str, Any]]) -> None:
            self[begin:] = some

        return keep_only


def test_message_changed_during_its_deletion_is_restored_in_its_latest_form(lab: Lab) -> None:
    class Edited(Kept):
        def __call__(self, records: Sequence[Mapping[str, Any]]) -> Callable[[Sequence[Mapping[str, Any]]], None]:
            if not edits:
                edits.append("new")
                lab.contents.update(id, {"payload": edits[0]})
            return super().__call__(records)

    edits: list[str] = []
    id, kept = lab.queue.enqueue("mail", "old"), Edited()
    assert lab.contents.delete([id], keep=kept) == {id: "DELETED"}
    assert len(kept) == 1
    assert lab.contents.restore(kept) == 1
    (message,) = lab.contents.list("main").messages
    assert (message.id, message.payload) == (id, "new")


def test_message_of_another_state_is_neither_deleted_nor_archived_for_undo(lab: Lab) -> None:
    id, kept = lab.queue.enqueue("mail"), Kept()
    assert lab.contents.delete([id, "unknown"], source="dead", keep=kept) == {id: "NOT_FOUND", "unknown": "NOT_FOUND"}
    assert kept == []
    assert lab.contents.counts().main == 1


def test_deletion_that_ended_before_it_deleted_leaves_nothing_to_restore(lab: Lab) -> None:
    class Killed(Kept):
        def __call__(self, records: Sequence[Mapping[str, Any]]) -> Callable[[Sequence[Mapping[str, Any]]], None]:
            super().__call__(records)
            raise KeyboardInterrupt

    id, kept = lab.queue.enqueue("mail"), Killed()
    with pytest.raises(KeyboardInterrupt):
        lab.contents.delete([id], keep=kept)
    assert lab.contents.restore(kept) == 0
    assert lab.contents.counts().main == 1


def test_repeated_restore_adds_no_duplicates(lab: Lab) -> None:
    ids, kept = [lab.queue.enqueue("mail") for _ in range(3)], Kept()
    lab.contents.delete(ids, keep=kept)
    assert lab.contents.restore(kept[:2]) == 2
    assert lab.contents.restore(kept) == 1
    assert [lab.take().id for _ in ids] == ids


def test_restored_messages_are_received_by_their_type(lab: Lab) -> None:
    assert lab.queue.dequeue(type="mail") is None  # from now on type indexes are kept
    id, kept = lab.queue.enqueue("mail"), Kept()
    lab.contents.delete([id], keep=kept)
    lab.contents.restore(kept)
    received = lab.queue.dequeue(type="mail")
    assert received is not None
    assert received.id == id


def test_cleared_message_of_a_producer_whose_clock_is_ahead_is_restored(lab: Lab) -> None:
    created_at, kept = lab.now_ms() / 1000 + 60, Kept()
    lab.client.xadd("q", {"data": json.dumps({"id": "a", "type": "mail", "created_at": created_at, "payload": 1})})
    assert sum(lab.contents.clear_in_batches("main", keep=kept)) == 1
    assert lab.contents.restore(kept) == 1
    assert lab.take().id == "a"


def test_all_messages_that_are_cleared_in_processing_are_restored(lab: Lab) -> None:
    lab.queue.enqueue_batch([NewMessage(type="job", id=f"{number}") for number in range(180)])
    taken, kept = [one for _ in range(3) for one in lab.queue.receive_many(60)], Kept()

    assert sum(lab.contents.clear_in_batches("processing", keep=kept)) == len(kept) == len(taken)

    assert lab.contents.counts().processing == 0
    assert lab.contents.restore(kept) == len(taken)
    assert sorted(lab.ids("main")) == sorted(one.id for one in taken)


@pytest.mark.slow
def test_large_messages_are_deleted_and_restored_in_slices(lab: Lab) -> None:
    messages = [NewMessage(type="large", id=f"{number}", payload="x" * 900_000) for number in range(5)]
    for message in messages:
        lab.queue.enqueue_batch([message])
    kept = Kept()
    assert sum(lab.contents.clear_in_batches("main", keep=kept)) == len(messages)
    assert lab.contents.restore(kept) == len(messages)
    assert [one.id for one in lab.contents.list("main", ascending=True).messages] == [one.id for one in messages]


@pytest.mark.scale
def test_100_000_are_cleared_and_restored_in_slices(lab: Lab, figure: Callable[[str], None], kind: str) -> None:
    ids = enqueue(lab, MANY)
    lab.client.config_set("slowlog-log-slower-than", 1_000)
    lab.client.config_set("slowlog-max-len", 10_000)
    lab.client.slowlog_reset()
    kept = Kept()
    assert sum(lab.contents.clear_in_batches("main", keep=kept)) == len(kept) == MANY
    assert lab.contents.counts().main == 0
    assert lab.contents.restore(kept) == MANY
    assert lab.contents.counts().main == MANY
    slowest = max((entry["duration"] for entry in lab.client.slowlog_get(10_000)), default=0)
    figure(f"message queue on {kind}: {MANY:,} messages restored; slowest command {slowest / 1000:.1f} ms")
    assert {one["id"] for one in kept} == {*ids}
