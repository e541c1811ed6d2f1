"""What processes do to a queue in a storm. Each writes what it did to a file of its own, which outlives `kill -9`."""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import redis

from queue_manager.core.clock import seconds
from services.message_queue import LockLost, Message, NewMessage, QueueUnavailable, UnknownMessage
from tests.forked import server
from tests.services.message_queue.message_lab import LONG, Lab

SHORT = 0.03  # seconds: the deadline of those who will not come back
TYPES = ("a", "b", "c")


def begin(work: Callable[..., None], *arguments: object) -> BaseProcess:
    """Start a process; it ends with this one."""
    process = server.Process(target=_run, args=(work, arguments), daemon=True)
    process.start()
    return process


def _run(work: Callable[..., None], arguments: tuple[object, ...]) -> None:
    random.seed(os.urandom(8))
    work(*arguments)


def _while_wanted() -> Iterator[None]:
    parent = os.getppid()
    while os.getppid() == parent:
        yield


@contextmanager
def _notes(path: Path) -> Iterator[Callable[[str], None]]:
    """Give what writes one line, at once."""
    with path.open("a", buffering=1) as file:
        yield lambda line: print(line, file=file)


def make(id: str) -> NewMessage:
    number = int(id.rsplit("-", 1)[-1])
    return NewMessage(type=TYPES[number % 3], payload={"n": number}, priority=number % 4, id=id)


def do_everything(url: str, notes: Path, own: str, messages: int, total: int) -> None:
    """Enqueue `messages`, and take, acknowledge, reject, forget and sweep until `total` are done or dead."""
    left = deque(f"{own}-{number}" for number in range(messages))
    late: deque[Message] = deque()
    with Lab(url) as lab, _notes(notes) as note:
        for _ in _while_wanted():
            if left and random.random() < 0.2:
                some = [left.popleft() for _ in range(min(50, len(left)))]
                assert all(added.is_new for added in lab.queue.enqueue_batch([make(id) for id in some]))
            fate = random.choices(("ack", "nack", "late", "crash"), (80, 10, 5, 5))[0]
            message = lab.queue.dequeue(
                type=random.choice(TYPES) if random.random() < 0.2 else None,
                # always named, because a message without its own keeps that of an earlier delivery
                ack_timeout=SHORT if fate in ("late", "crash") else LONG.total_seconds(),
            )
            if message is None:
                lab.sweeper.sweep()
                counts = lab.contents.counts()
                if counts.total_acknowledged + counts.dead == total:
                    break
                if counts.main == 0:
                    time.sleep(SHORT / 4)
            elif fate == "ack":
                lab.queue.ack(message.id, message.lock_token)
                note(message.id)
            elif fate == "nack":
                lab.queue.nack(message.id, message.lock_token, "no")
            elif fate == "late":
                late.append(message)
            if len(late) > 5 or (late and message is None):
                message = late.popleft()
                with suppress(LockLost):
                    lab.queue.ack(message.id, message.lock_token)
                    note(message.id)
            if random.random() < 0.02:
                lab.sweeper.sweep()


def consume(url: str, notes: Path) -> None:
    """Take and acknowledge until killed."""
    with Lab(url, ack_timeout=seconds(0.2), max_attempts=10_000) as lab, _notes(notes) as note:
        for _ in _while_wanted():
            with suppress(LockLost, UnknownMessage):
                try:
                    message = lab.queue.dequeue(timeout=0.1)
                    if message is None:
                        continue
                    note(f"taken {message.id}")
                    if random.random() < 0.1:
                        lab.queue.nack(message.id, message.lock_token)
                    else:
                        lab.queue.ack(message.id, message.lock_token)
                        note(f"acknowledged {message.id}")
                except QueueUnavailable:
                    time.sleep(0.02)


def sweep(url: str, notes: Path) -> None:
    """Sweep until killed."""
    with Lab(url, ack_timeout=seconds(0.2), max_attempts=10_000, batch=3) as lab, _notes(notes) as note:
        for _ in _while_wanted():
            try:
                swept = lab.sweeper.sweep()
                if swept.requeued:
                    note(f"requeued {len(swept.requeued)}")
                lab.heal()
            except (QueueUnavailable, redis.ConnectionError):  # the second, from the lab's own client
                pass
            time.sleep(0.01)
