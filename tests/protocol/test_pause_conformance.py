"""`pauses.py` and the message queue agree: every step from every reachable state is executed on a real queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pytest

from tests.protocol.pauses import MessageOrder, Order
from tests.real_servers import Servers
from tests.services.message_queue.message_lab import Lab


@pytest.fixture
def lab(clean: Servers) -> Iterator[Lab]:
    with Lab(clean.valkey.url, levels=1) as lab:
        yield lab


def perform(lab: Lab, words: str, state: Order) -> list[int]:
    """Execute a step; return the numbers of the messages that were delivered by it."""
    *_, last = words.split()
    if words.startswith("the producer"):
        lab.queue.enqueue(last, id=str(len(state.kinds)))
    elif words.startswith("an operator pauses"):
        lab.contents.pause([last], by="ada")
    elif words.startswith("an operator resumes"):
        lab.contents.resume([last])
    else:
        return [int(message.id) for message in lab.queue.receive_many(1)]
    return []


def restore(lab: Lab, dumps: dict[bytes, bytes]) -> None:
    with lab.client.pipeline() as pipe:
        pipe.flushdb()
        for key, value in dumps.items():
            pipe.restore(key, 0, value)
        pipe.execute()


def save(lab: Lab) -> dict[bytes, bytes]:
    keys = [key for key in lab.client.scan_iter() if key != b"q:events"]
    with lab.client.pipeline() as pipe:
        for key in keys:
            pipe.dump(key)
        return dict(zip(keys, pipe.execute(), strict=True))


@pytest.mark.slow
def test_queue_delivers_in_the_order_of_the_specification(lab: Lab, figure: Callable[[str], None]) -> None:
    specification, executed = MessageOrder(messages=3), 0
    first = specification.initial()
    snapshots = {first: save(lab)}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        for words, following in specification.next_states(state):
            if words.startswith("a slice"):
                continue
            restore(lab, snapshots[state])
            delivered = perform(lab, words, state)
            executed += 1
            assert delivered == sorted({*following.delivered} - {*state.delivered}), (words, state)
            undelivered = [at for at in range(len(following.kinds)) if at not in following.delivered]
            assert lab.ids("main") == [str(at) for at in reversed(undelivered)], (words, state)
            if following not in snapshots:
                snapshots[following] = save(lab)
                waiting.append(following)
    figure(f"order of messages of paused types: {executed:,} steps, no difference")
