"""`messages.py` and the message queue agree: every step from every reachable state is executed on a real queue.

A consumer whose lock is lost is refused in every state, and changes nothing.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from services.message_queue import LockLost, NewMessage, UnknownMessage
from tests.protocol.messages import Delivery, Entry, MessageQueueProtocol, Record, Stored, Stream
from tests.real_servers import Servers
from tests.services.message_queue.message_lab import Lab

ID, TYPE = "one", "mail"
STREAMS: dict[str, Stream] = {
    "q": "main",
    "q_typed": "typed",
    "q_dlq": "dead",
    "q_acknowledged": "acknowledged",
    "q_archived": "archived",
}
Snapshot = tuple[dict[bytes, bytes], tuple[str, ...]]


@dataclass
class RealMessage:
    """One message in a real queue, and the lock tokens that consumers have."""

    lab: Lab
    tokens: list[str] = field(default_factory=list)

    # Steps, by the words of the specification

    def perform(self, words: str) -> None:
        steps: dict[str, Callable[[], object]] = {
            "the producer enqueues it": self.enqueue,
            "the producer enqueues it again; its id exists": self.enqueue,
            "a consumer receives it": self.receive,
            "a consumer receives it by its type": lambda: self.receive(type=TYPE),
            "the consumer that holds it extends the deadline": lambda: self.lab.queue.touch(ID, self.holder()),
            "the consumer that holds it acknowledges it": lambda: self.lab.queue.ack(ID, self.dropped(self.holder())),
            "the consumer that holds it acknowledges it, and hears no answer": lambda: self.lab.queue.ack(
                ID, self.holder()
            ),
            "the consumer that holds it rejects it": lambda: self.lab.queue.nack(ID, self.dropped(self.holder())),
            "the consumer that holds it dies, or gives up": lambda: self.dropped(self.holder()),
            "a consumer that lost its lock dies, or gives up": lambda: self.dropped(self.others()[0]),
            "a consumer passes over it, since its type is paused": self.receive_nothing,
            "an operator pauses its type": lambda: self.lab.contents.pause([TYPE], by="ada", reason="spill"),
            "an operator resumes its type": lambda: self.lab.contents.resume([TYPE]),
            "its deadline passes": lambda: self.lab.lapse(ID),
            "a sweep finds it overdue": self.lab.sweeper.sweep,
            "an operator takes it from its consumer": lambda: self.lab.contents.move([ID], to="main"),
            "an operator replays it": lambda: self.lab.contents.move([ID], to="main"),
            "an operator moves it to dead": lambda: self.lab.contents.move([ID], to="dead"),
            "an operator moves it to acknowledged": lambda: self.lab.contents.move([ID], to="acknowledged"),
            "an operator moves it to archived": lambda: self.lab.contents.move([ID], to="archived"),
            "an operator deletes it": lambda: self.lab.contents.delete([ID]),
            "100 others are acknowledged, it is forgotten": self.acknowledge_others,
        }
        steps[words]()

    def enqueue(self) -> None:
        self.lab.queue.enqueue(TYPE, {"to": "ada"}, id=ID)

    def receive(self, **wanted: str) -> None:
        self.tokens.append(str(self.lab.take(**wanted).lock_token))

    def receive_nothing(self) -> None:
        assert self.lab.queue.dequeue() is None

    def acknowledge_others(self) -> None:
        self.lab.queue.enqueue_batch([NewMessage(type="another", id=f"other-{number}") for number in range(100)])
        received = self.lab.queue.receive_many(100)
        assert all(self.lab.queue.ack_many([(message.id, message.lock_token) for message in received]))

    # Consumers

    def holder(self) -> str:
        (current,) = [token for token in self.tokens if token == self.record().get("lock_token")]
        return current

    def others(self) -> list[str]:
        return [token for token in self.tokens if token != self.record().get("lock_token")]

    def dropped(self, token: str) -> str:
        self.tokens.remove(token)
        return token

    # State

    def record(self) -> dict[str, Any]:
        text = self.lab.client.hget("q_metadata", ID)
        return {} if text is None else json.loads(text)

    def stored(self) -> Stored:
        """Return the keys of the message, and what consumers know, as the specification has them."""
        with self.lab.client.pipeline() as pipe:
            pipe.zscore("q:deadlines", ID)
            pipe.sismember("q:pending_ids", ID)
            pipe.hget("q:pauses", TYPE)
            pipe.zrange(f"q:parked:{TYPE}", 0, -1)
            for key in STREAMS:
                pipe.xrange(key)
                pipe.xpending_range(key, "q_group", "-", "+", 1_000)
            found = pipe.execute(raise_on_error=False)  # a stream may have no group
        score, is_pending_id, pause, parked, *found = found
        places: dict[tuple[str, str], Entry] = {}
        for (key, stream), entries, pending in zip(STREAMS.items(), found[::2], found[1::2], strict=True):
            delivered = [] if isinstance(pending, redis.ResponseError) else [one["message_id"] for one in pending]
            for sid, fields in entries:
                if json.loads(fields[b"data"])["id"] == ID:
                    is_parked = parked_member(sid.decode()) in parked
                    places[key, sid.decode()] = Entry(stream, sid in delivered, is_parked)
        assert len(parked) == sum(entry.is_parked for entry in places.values())
        assert (pause == b"") <= bool(parked), "a resumed type is forgotten when nothing is parked"
        record = self.record()
        is_locked = "lock_token" in record
        if record:
            at = record.get("at", "").partition(":")[2]  # of a message that was never delivered
            assert (record.get("stream", "q"), record.get("sid", at)) in places
        assert is_locked == ("deadline_at" in record) == bool(is_pending_id)
        return Stored(
            entries=tuple(places.values()),
            record=Record(record.get("attempt_count", 0), is_locked) if record else None,
            deadline="none" if score is None else "passed" if score <= self.lab.now_ms() else "coming",
            deliveries=tuple(sorted(Delivery(token == record.get("lock_token")) for token in self.tokens)),
            is_paused=bool(pause),
        )

    def save(self) -> Snapshot:
        keys = [key for key in self.lab.client.scan_iter() if key != b"q:events"]
        with self.lab.client.pipeline() as pipe:
            for key in keys:
                pipe.dump(key)
            return dict(zip(keys, pipe.execute(), strict=True)), tuple(self.tokens)

    def restore(self, snapshot: Snapshot) -> None:
        keys, tokens = snapshot
        with self.lab.client.pipeline() as pipe:
            pipe.flushdb()
            for key, value in keys.items():
                pipe.restore(key, 0, value)
            pipe.execute()
        self.tokens = list(tokens)


def parked_member(sid: str) -> bytes:
    """Return the member of a parked message of the priority 0."""
    ms, sequence = sid.split("-")
    return f"0:{int(ms):020}-{int(sequence):020}:{ID}".encode()


def visible(state: Stored) -> Stored:
    """Return what is stored, without what the specification remembers to judge it."""
    return Stored(
        entries=state.entries,
        record=state.record,
        deadline=state.deadline,
        deliveries=state.deliveries,
        is_paused=state.is_paused,
    )


@pytest.fixture
def real(clean: Servers) -> Iterator[RealMessage]:
    with Lab(clean.valkey.url, max_attempts=2, levels=1) as lab:
        yield RealMessage(lab)


def conform(real: RealMessage, protocol: MessageQueueProtocol) -> int:
    """Execute every step from every reachable state; return how many."""
    first, executed = protocol.initial(), 0
    snapshots = {first: real.save()}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        for words, following in protocol.next_states(state):
            real.restore(snapshots[state])
            real.perform(words)
            executed += 1
            assert real.stored() == visible(following), (words, state)
            if following not in snapshots:
                snapshots[following] = real.save()
                waiting.append(following)
        real.restore(snapshots[state])
        refuse_what_is_not_allowed(real, state)
    return executed


def refuse_what_is_not_allowed(real: RealMessage, state: Stored) -> None:
    for token in real.others():
        for refused in (real.lab.queue.ack, real.lab.queue.nack, real.lab.queue.touch):
            with pytest.raises((LockLost, UnknownMessage)):
                refused(ID, token)
    is_waiting = state.entries in [(Entry("main"),), (Entry("main", is_parked=True),)]
    if not is_waiting or state.is_paused:
        assert real.lab.queue.dequeue(type=TYPE) is None
        if state.entries != (Entry("main"),):  # otherwise it is parked
            assert real.lab.queue.dequeue() is None
    assert real.lab.ids("main") == ([ID] if is_waiting else [])
    assert real.lab.contents.counts().main == is_waiting
    if state.deadline != "passed":
        assert real.lab.sweeper.sweep().as_dict() == {"requeued": 0, "dead_lettered": 0, "ids": [], "dlq_ids": []}
    assert real.stored() == visible(state)


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [{"operations": 1, "pauses": 0}, {"operations": 0, "pauses": 1}], ids=repr)
def test_queue_takes_only_the_steps_of_the_specification(
    real: RealMessage, figure: Callable[[str], None], bounds: dict[str, int]
) -> None:
    steps = conform(real, MessageQueueProtocol(**bounds))
    figure(f"message queue and its specification: {steps:,} steps, no difference")


@pytest.mark.stress
def test_queue_takes_the_steps_of_a_larger_specification(real: RealMessage) -> None:
    assert conform(real, MessageQueueProtocol(operations=2, enqueues=3, consumers=3)) > 10_000
