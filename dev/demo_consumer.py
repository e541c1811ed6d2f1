"""The demo's consumer: works on the demo's messages and no others, fails now and then, and now and then dies.

It dies by SIGKILL in the middle of a message, which so comes back at its deadline. Run as
`python -m dev.demo_consumer`; the demo starts some of them, and another one for each that ends.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import Any, Self

from dev.demo_messages import PRIORITIES
from dev.processes import describe
from queue_manager import LockLost, QueueUnavailable, UnknownMessage, message_queue
from queue_manager.core import log as logging
from queue_manager.core.clock import seconds
from queue_manager.core.settings import settings
from services.message_queue import Message, MessageQueue

MODULE = "dev.demo_consumer"
CONSUMERS = 2
RESTART_EVERY = seconds(2)
ACK_TIMEOUT = 5.0  # seconds: short, so that nobody has to wait to see a message come back
RECEIVE_TIMEOUT = 1.0  # seconds to wait for a message of one type
MIN_DURATION, MAX_DURATION = 0.2, 3.5  # seconds of work
DEATH_CHANCE, FAILURE_CHANCE = 0.03, 0.05
RETRY_DELAY = 3.0  # seconds between attempts while the queue's server is unavailable


class WorkFailed(Exception):
    """A message could not be processed: it is requeued."""


class Consumers:
    """The consumers that the demo runs, as processes of its own group; a context manager that ends them."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def keep_running(self) -> None:
        """Start those that are missing. A death by SIGKILL is part of the demo; another end is said."""
        for child in [child for child in self._running if child.poll() is not None]:
            self._running.remove(child)
            if child.returncode != -signal.SIGKILL:
                print(f"consumer {child.pid} {describe(child.returncode)}; another one starts")
        while len(self._running) < CONSUMERS:
            self._running.append(subprocess.Popen([sys.executable, "-m", MODULE]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all consumers and wait for them: each requeues the message that it works on."""
        for child in self._running:
            child.terminate()
        for child in self._running:
            child.wait()


def take_one(queue: MessageQueue) -> None:
    """Wait a moment for a message of some type of the demo, and work on it."""
    name = f"demo-consumer-{os.getpid()}"
    kind = random.choice(list(PRIORITIES))
    with queue.receive(type=kind, timeout=RECEIVE_TIMEOUT, ack_timeout=ACK_TIMEOUT, consumer_id=name) as message:
        if message is not None:
            work(message)


def work(message: Message) -> None:
    """Take the time that the work takes. Raises `WorkFailed`; or kills this process."""
    half = random.uniform(MIN_DURATION, MAX_DURATION) / 2
    time.sleep(half)
    if random.random() < DEATH_CHANCE:
        die(message)
    time.sleep(half)
    if fault := _fault(message.payload):
        raise WorkFailed(fault)


def die(message: Message) -> None:
    """End as `kill -9` ends a consumer."""
    print(f"consumer killed; its message comes back within {ACK_TIMEOUT:g} s: {message.type} {message.id}")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _fault(payload: Any) -> str | None:
    if isinstance(payload, dict) and payload.get("fault"):
        return str(payload["fault"])
    return "the connection was lost" if random.random() < FAILURE_CHANCE else None


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    logging.configure(level=settings().qm_log_level, form=settings().qm_log_format)
    parent = os.getppid()
    while os.getppid() == parent:
        try:
            take_one(message_queue())
        except QueueUnavailable:
            time.sleep(RETRY_DELAY)
        except (WorkFailed, LockLost, UnknownMessage):
            continue  # requeued, or moved or deleted by somebody: the next one


if __name__ == "__main__":
    main()
