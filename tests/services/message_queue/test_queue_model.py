"""Hypothesis drives the real queue and the model of it side by side, and looks for a step after which they differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dev.servers import Valkey
from services.message_queue import Json, LockLost, MessageInProgress, NewMessage, UnknownMessage
from services.message_queue.fields import members
from tests.services.message_queue.message_lab import Lab
from tests.services.message_queue.queue_model import HISTORY, Modelled, QueueModel

pytestmark = pytest.mark.scale

LEVELS, BATCH, MAX_ATTEMPTS = 3, 2, 2
SHORT = 0.001  # seconds
MESSAGE_STATES = ("main", "processing", "dead", "acknowledged", "archived")

types = st.sampled_from(["a", "b", "ü:*[x]"])
payloads = st.sampled_from(["null", "[]", "{}", "1.10", "123456789012345678901234567890", '"\\ud800"', '{"a": [ 1 ]}'])
own_ids = st.sampled_from([f"own:{number}" for number in range(6)])
new_messages = st.builds(
    Modelled,
    id=st.one_of(st.just(""), own_ids),
    type=types,
    payload=payloads,
    priority=st.integers(0, LEVELS - 1),
    ack_timeout=st.sampled_from([None, 500, 0.25 * 4000]),
    max_attempts=st.sampled_from([None, None, 1, 3]),
)
positions = st.lists(st.integers(0, 40), min_size=1, max_size=4)


class QueueMachine(RuleBasedStateMachine):
    lab: Lab
    steps: Any

    def __init__(self) -> None:
        super().__init__()
        self.lab.client.flushall()
        self.model = QueueModel(levels=LEVELS, max_attempts=MAX_ATTEMPTS, batch=BATCH)
        self.numbers = count()
        self.taken: list[tuple[str, str]] = []  # ids and tokens that consumers remember, the newest last
        self.known: list[str] = ["never-enqueued"]
        self.events_end = "-"
        self.is_index_kept = False

    # Producers

    @initialize(is_full=st.sampled_from([False, False, False, True]))
    def fill_history(self, is_full: bool) -> None:
        if is_full:
            new = [self.named(Modelled(**PLAIN)) for _ in range(HISTORY)]
            self.enqueue_all(new)
            ids = [message.id for message in new]
            assert self.lab.contents.move(ids, to="acknowledged") == self.model.move(
                ids, to="acknowledged", source=None, reason=""
            )

    @initialize(messages=st.lists(new_messages, min_size=3, max_size=8), paused=st.lists(types, unique=True))
    def park(self, messages: list[Modelled], paused: list[str]) -> None:
        """Let consumers pass over messages of paused types."""
        self.enqueue_all([self.named(message) for message in messages])
        for type in paused:
            self.pause(type)
            self.dequeue(None, None)

    def named(self, message: Modelled) -> Modelled:
        message.id = message.id or f"m{next(self.numbers)}"
        self.known.append(message.id)
        return message

    def enqueue_all(self, messages: list[Modelled]) -> None:
        answers = self.lab.queue.enqueue_batch(
            [
                NewMessage(
                    type=message.type,
                    payload=Json(message.payload),
                    priority=message.priority,
                    ack_timeout=message.ack_timeout,
                    max_attempts=message.max_attempts,
                    id=message.id,
                )
                for message in messages
            ]
        )
        assert [answer.id for answer in answers] == [message.id for message in messages]
        assert [answer.is_new for answer in answers] == self.model.enqueue(messages)

    @rule(message=new_messages)
    def enqueue(self, message: Modelled) -> None:
        self.enqueue_all([self.named(message)])

    @rule(messages=st.lists(new_messages, min_size=1, max_size=5))
    def enqueue_batch(self, messages: list[Modelled]) -> None:
        self.enqueue_all([self.named(message) for message in messages])

    @rule(type=types, payload=payloads, priority=st.integers(0, LEVELS - 1))
    def enqueue_without_id(self, type: str, payload: str, priority: int) -> None:
        id = self.lab.queue.enqueue(type, Json(payload), priority=priority)
        self.known.append(id)
        added = {**PLAIN, "id": id, "type": type, "payload": payload, "priority": priority}
        assert self.model.enqueue([Modelled(**added)]) == [True]

    # Consumers

    @rule(type=st.one_of(st.none(), types), ack_timeout=st.sampled_from([None, None, 700, SHORT]))
    def dequeue(self, type: str | None, ack_timeout: float | None) -> None:
        expected = self.model.next_one(type)
        self.is_index_kept |= type is not None and type not in self.model.paused
        message = self.lab.queue.dequeue(type=type, ack_timeout=ack_timeout, consumer_id="tester")
        if expected is None:
            assert message is None
            return
        assert message is not None
        assert message.id == expected.id
        assert message.payload_json == expected.payload
        assert message.lock_token
        assert message.deadline_at
        held_for = ack_timeout or expected.ack_timeout or 1000
        expected.ack_timeout = expected.ack_timeout or ack_timeout
        assert message.deadline_at - message.fields["dequeued_at"] == pytest.approx(held_for, abs=0.0011)
        self.model.deliver(expected, message.lock_token, round(message.deadline_at * 1000))
        self.taken.append((message.id, message.lock_token))
        if ack_timeout == SHORT:
            self.lab.until_passed(message.deadline_at * 1000)

    def pick(self, position: int) -> tuple[str, str]:
        return self.taken[-1 - position % len(self.taken)]

    def refused(self, id: str, act: Callable[[], object], *, unknown: type[Exception] = UnknownMessage) -> None:
        before = self.lab.dump()
        with pytest.raises(LockLost if id in self.model.messages else unknown):
            act()
        assert self.lab.dump() == before

    @precondition(lambda self: self.taken)
    @rule(position=st.integers(0, 8))
    def ack(self, position: int) -> None:
        id, token = self.pick(position)
        if self.model.is_holder(id, token):
            self.lab.queue.ack(id, token)
            self.model.ack(id)
        else:
            self.refused(id, lambda: self.lab.queue.ack(id, token), unknown=LockLost)

    @precondition(lambda self: self.taken)
    @rule(position=st.integers(0, 8), reason=st.sampled_from(["boom", "ü" * 3000, "\ud800"]))
    def nack(self, position: int, reason: str) -> None:
        id, token = self.pick(position)
        if self.model.is_holder(id, token):
            kept = reason.encode("utf-8", "replace")[:4096].decode()
            assert self.lab.queue.nack(id, token, reason) == self.model.nack(id, kept)
        else:
            self.refused(id, lambda: self.lab.queue.nack(id, token, reason))

    @precondition(lambda self: self.taken)
    @rule(position=st.integers(0, 8), extension=st.sampled_from([None, 900, SHORT]))
    def touch(self, position: int, extension: float | None) -> None:
        id, token = self.pick(position)
        if not self.model.is_holder(id, token):
            self.refused(id, lambda: self.lab.queue.touch(id, token, extension))
            return
        touched = self.lab.queue.touch(id, token, extension)
        message = self.model.messages[id]
        assert touched.extended_by.total_seconds() == (extension or message.ack_timeout or 1000)
        message.deadline_ms = round(touched.deadline_at * 1000)
        self.model.events.append(("touch", [id]))
        if extension == SHORT:
            self.lab.until_passed(message.deadline_ms)

    @precondition(lambda self: self.model.held)
    @rule(position=st.integers(0, 8), act=st.sampled_from(["ack", "nack", "touch"]), token=st.sampled_from(["x", None]))
    def act_with_wrong_token(self, position: int, act: str, token: str | None) -> None:
        id = list(self.model.held)[position % len(self.model.held)]
        self.refused(id, lambda: getattr(self.lab.queue, act)(id, token))

    @precondition(lambda self: self.taken)
    @rule(position=st.integers(0, 8))
    def crash(self, position: int) -> None:
        self.taken.remove(self.pick(position))

    # Time, and the sweep

    @precondition(lambda self: self.model.held)
    @rule(chosen=positions)
    def let_deadlines_pass(self, chosen: list[int]) -> None:
        held = list(self.model.held)
        for id in {held[position % len(held)] for position in chosen}:
            self.model.messages[id].deadline_ms = deadline = self.lab.now_ms() - 1000 + chosen[0]
            self.lab.client.zadd("q:deadlines", {id: deadline}, xx=True)

    @rule()
    def sweep(self) -> None:
        swept = self.lab.sweeper.sweep()
        requeued, dead = self.model.sweep(self.lab.now_ms())
        assert (swept.requeued, swept.dead_lettered) == (requeued, dead)

    @rule()
    def heal(self) -> None:
        before = self.lab.dump()
        assert self.lab.heal() == 0
        after = self.lab.dump()
        after.pop(b"q:healed", None)
        before.pop(b"q:healed", None)
        assert after == before

    # People

    def chosen(self, chosen: list[int]) -> list[str]:
        return list(dict.fromkeys(self.known[-1 - position % len(self.known)] for position in chosen))

    @rule(
        chosen=positions,
        to=st.sampled_from(["main", "dead", "acknowledged", "archived"]),
        source=st.one_of(st.none(), st.sampled_from(MESSAGE_STATES)),
    )
    def move(self, chosen: list[int], to: Any, source: Any) -> None:
        ids = self.chosen(chosen)
        answers = self.lab.contents.move(ids, to=to, source=source, reason="by a test")
        assert answers == self.model.move(ids, to=to, source=source, reason="by a test")

    @precondition(lambda self: self.model.kept["dead"])
    @rule(position=st.integers(0, 8))
    def replay(self, position: int) -> None:
        dead = self.model.kept["dead"]
        ids = [dead[position % len(dead)], "never-enqueued"]
        assert self.lab.contents.replay(ids) == self.model.move(ids, to="main", source="dead", reason="")

    @rule(chosen=positions, source=st.one_of(st.none(), st.sampled_from(MESSAGE_STATES)))
    def delete(self, chosen: list[int], source: Any) -> None:
        ids = self.chosen(chosen)
        assert self.lab.contents.delete(ids, source=source) == self.model.delete(ids, source=source)

    @rule(
        position=st.integers(0, 40),
        changes=st.fixed_dictionaries(
            {},
            optional={
                "type": types,
                "payload": payloads,
                "priority": st.integers(0, LEVELS - 1),
                "max_attempts": st.sampled_from([None, 1, 3]),
                "ack_timeout": st.sampled_from([None, 500]),
            },
        ).filter(bool),
    )
    def update(self, position: int, changes: dict[str, Any]) -> None:
        [id] = self.chosen([position])
        given = {**changes, "payload": Json(changes["payload"])} if "payload" in changes else changes
        if self.model.place_of(id) in (None, "processing"):
            before = self.lab.dump()
            with pytest.raises(MessageInProgress if id in self.model.messages else UnknownMessage):
                self.lab.contents.update(id, given)
            assert self.lab.dump() == before
            return
        self.lab.contents.update(id, given)
        self.model.update(id, changes)

    @rule(type=types)
    def pause(self, type: str) -> None:
        self.lab.contents.pause([type], by="ada")
        self.model.pause(type)

    @rule(resumed=st.lists(types, min_size=1, unique=True))
    def resume(self, resumed: list[str]) -> None:
        self.lab.contents.resume(resumed)
        for type in resumed:
            self.model.resume(type)

    @rule(place=st.sampled_from([None, *MESSAGE_STATES]), luck=st.integers(0, 3))
    def clear(self, place: Any, luck: int) -> None:
        if luck == 0:  # not so often that nothing ever grows
            assert self.lab.clear(place) == self.model.clear(place)

    @rule()
    def look_at_everything(self) -> None:
        expected = {place: list(reversed(ids)) for place, ids in self.model.kept.items()}
        for place, ids in expected.items():
            assert self.lab.ids(place) == ids  # type: ignore[arg-type]
        assert sorted(self.lab.ids("main")) == sorted(id for ids in self.model.main for id in ids)
        assert sorted(self.lab.ids("processing")) == sorted(self.model.held)
        for id, message in self.model.messages.items():
            found = self.lab.contents.find(id)
            assert found is not None
            assert found.payload_json == message.payload
        counts = self.lab.contents.counts()
        assert counts.waiting == [len(ids) for ids in self.model.main]
        assert counts.processing == len(self.model.held)
        assert {place: counts.of(place) for place in expected} == {place: len(ids) for place, ids in expected.items()}  # type: ignore[arg-type]
        assert counts.total_acknowledged == self.model.total_acknowledged

    # What holds after every step

    @invariant()
    def nothing_differs(self) -> None:
        self.steps()
        lab, model = self.lab, self.model
        with lab.client.pipeline(transaction=True) as pipe:
            pipe.hgetall("q_metadata")
            pipe.zrange("q:deadlines", 0, -1, withscores=True)
            pipe.smembers("q:pending_ids")
            pipe.get("q:stats:total_acknowledged")
            pipe.xrange("q:events", self.events_end)
            for stream in (*STREAMS, "q_typed"):
                pipe.xrange(stream)
            for stream in ("q_dlq", "q_acknowledged", "q_archived"):
                pipe.xrange(stream)
            for type in TYPES:
                pipe.zrange(f"q:type:{type}", 0, -1)
            for type in TYPES:
                pipe.zrange(f"q:parked:{type}", 0, -1)
            pipe.hgetall("q:pauses")
            answers = iter(pipe.execute())
        records = {id.decode(): json.loads(text) for id, text in next(answers).items()}
        deadlines, pending_ids, total, events = (next(answers) for _ in range(4))

        assert {id.decode(): score for id, score in deadlines} == {
            id: model.messages[id].deadline_ms for id in model.held
        }
        assert {id.decode() for id in pending_ids} == set(model.held)
        assert int(total or 0) == model.total_acknowledged
        self.compare_events(events)
        assert set(records) == set(model.messages)

        held, passed_over = [], set[str]()
        for priority, stream in enumerate(STREAMS):
            entries = self.entries(stream, next(answers), records)
            pending = {sid.decode() for sid in lab.pending(stream)} if model.held else set()
            held += [id for sid, id in entries if sid in pending]
            assert len(pending) == len([sid for sid, _ in entries if sid in pending])
            assert [id for sid, id in entries if sid not in pending] == model.main[priority]
            delivered = lab.last_delivered(stream)
            passed_over |= {id for sid, id in entries if sid not in pending and position(sid) <= delivered}
        typed = self.entries("q_typed", next(answers), records)
        assert {sid for sid, _ in typed} == {sid.decode() for sid in lab.pending("q_typed")}
        held += [id for _, id in typed]
        assert sorted(held) == sorted(model.held)
        for place, stream in zip(("dead", "acknowledged", "archived"), FINAL_STREAMS, strict=True):
            assert [id for _, id in self.entries(stream, next(answers), records)] == model.kept[place]
        for type in TYPES:
            expected = model.waiting_of(type) if self.is_index_kept else []
            assert [member.split(b":", 1)[1].decode() for member in next(answers)] == expected
        self.compare_parked(passed_over, {type: next(answers) for type in TYPES}, next(answers))

    def compare_parked(self, passed_over: set[str], parked: dict[str, list[bytes]], pauses: dict[bytes, bytes]) -> None:
        """The messages that the group has passed over are parked by their type, in their order."""
        assert {type.decode() for type, pause in pauses.items() if pause} == self.model.paused
        resumed = {type.decode() for type, pause in pauses.items() if not pause}
        assert resumed == {type for type, found in parked.items() if found} - self.model.paused
        for type, found in parked.items():
            ids = [member.split(b":", 2)[2].decode() for member in found]
            assert ids == [id for waiting in self.model.main for id in waiting if id in ids]
            assert {*ids} == {id for id in passed_over if self.model.messages[id].type == type}

    def entries(self, stream: str, found: list[Any], records: dict[str, Any]) -> list[tuple[str, str]]:
        """Return where each message of a stream is, and its id; each is what the model has, to the byte."""
        entries = []
        for sid, fields in found:
            text = fields[b"data"].decode()
            id = json.loads(members(text)["id"])
            expected, record = self.model.messages[id], records[id]
            end = text.partition(f'"payload":{expected.payload}')[2]
            if "added" in record:
                assert end.startswith(',"')
                assert len(end.encode()) == record["added"] + 1
            else:
                assert end == "}"
            if "at" in record:  # it was never delivered: the rest is in the entry
                assert record == {"at": f"{expected.priority}:{sid.decode()}"}
                assert stream == STREAMS[expected.priority]
                about = {name: json.loads(value) for name, value in members(text).items() if name != "payload"}
                record = {**about, "attempt_count": 0}
            else:
                assert (record["stream"], record["sid"]) == (stream, sid.decode())
            self.compare_record(record, expected)
            entries.append((sid.decode(), id))
        return entries

    def compare_record(self, record: dict[str, Any], expected: Modelled) -> None:
        found = {
            "type": record["type"],
            "priority": record["priority"],
            "attempts": record["attempt_count"],
            "ack_timeout": record.get("custom_ack_timeout"),
            "max_attempts": record.get("custom_max_attempts"),
            "last_error": record.get("last_error"),
            "token": record.get("lock_token"),
            "has_failed": "failed_at" in record,
            "lives": len(record.get("history", [])),
        }
        assert found == {name: getattr(expected, name) for name in found}
        while_held = {"lock_token", "consumer_id", "dequeued_at", "processing_started_at", "deadline_at"}
        assert while_held & set(record) == (while_held if expected.token else set())

    def compare_events(self, found: list[Any]) -> None:
        if found:
            self.events_end = f"({found[-1][0].decode()}"
        told: list[Any] = []
        for _, fields in found:
            event = json.loads(fields[b"event"])
            about = event["payload"]
            ids = [*about.get("ids", []), *about.get("dlq_ids", [])]
            assert about["count"] + about.get("dlq_count", 0) == len(ids) or event["type"] == "clear"
            # Many messages are cleared in slices, each with an event.
            if event["type"] != "clear" or told[-1:] != [("clear", [])]:
                told.append((event["type"], ids))
        assert told == self.model.events
        self.model.events.clear()


def position(sid: str) -> list[int]:
    """Return what stream ids are ordered by."""
    return [int(part) for part in sid.split("-")]


TYPES = ("a", "b", "ü:*[x]")
STREAMS = ("q", "q_p1", "q_p2")
FINAL_STREAMS = ("q_dlq", "q_acknowledged", "q_archived")
PLAIN: dict[str, Any] = {
    "id": "", "type": "a", "payload": "null", "priority": 0, "ack_timeout": None, "max_attempts": None
}  # fmt: skip


def drive(server: Valkey, *, examples: int, steps: int, is_repeatable: bool) -> int:
    """Run the machine, and return how many steps it took."""
    taken = count()
    with Lab(server.url, levels=LEVELS, max_attempts=MAX_ATTEMPTS, batch=BATCH) as lab:
        machine = type("Machine", (QueueMachine,), {"lab": lab, "steps": lambda _: next(taken)})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=is_repeatable,
                database=None,
                print_blob=True,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )
    return next(taken)


def test_queue_behaves_like_its_model(server: Valkey, figure: Callable[[str], None], kind: str) -> None:
    steps = drive(server, examples=12, steps=40, is_repeatable=True)
    figure(f"message queue and its model on {kind}: {steps:,} steps, no difference")


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_queue_behaves_like_its_model_in_many_steps(server: Valkey, figure: Callable[[str], None], kind: str) -> None:
    steps = 0
    while steps < 20_000:
        steps += drive(server, examples=200, steps=60, is_repeatable=False)
    figure(f"message queue and its model on {kind}: {steps:,} steps, no difference")
