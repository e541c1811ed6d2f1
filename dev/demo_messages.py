"""The demo's messages: what its product puts into the message queue, and what it clears away.

Every type begins with `demo.`. No more than 200 wait, and of the dead and archived ones the newest 50 are kept; the
queue itself keeps 100 acknowledged ones. `demo_consumer` works on them.
"""

from __future__ import annotations

import random
from typing import Any

from queue_manager.core.clock import seconds
from services.message_queue import Filter, MessageQueue, MessageState, NewMessage, QueueAdmin
from services.message_queue.browser import MAX_MESSAGES_PER_PAGE

PERIOD = seconds(3)
AT_START = 10
MAX_BATCH_SIZE = 3
MAX_WAITING = 200
RETENTION_COUNT = 50  # messages of each state
REPLAY_CHANCE = 0.05
FAULT_CHANCE = 0.08
PREFIX = "demo."
PRIORITIES = {
    "demo.charge_card": 9,
    "demo.send_mail": 5,
    "demo.export_report": 2,
    "demo.make_thumbnail": 0,
}
FAULT = "the account is closed"
"""What a message says that no consumer can do, so that it becomes a dead letter."""


def start(queue: MessageQueue, contents: QueueAdmin) -> None:
    """Enqueue what a product has left to do at its start."""
    produce(queue, contents, AT_START)


def go_on(queue: MessageQueue, contents: QueueAdmin) -> None:
    """Do what happens in one period: new messages come, now and then somebody replays one that died."""
    produce(queue, contents, random.randint(1, MAX_BATCH_SIZE))
    if random.random() < REPLAY_CHANCE:
        contents.replay(demo_ids(contents, "dead")[:1])
    clear_up(contents)


def produce(queue: MessageQueue, contents: QueueAdmin, count: int) -> None:
    """Enqueue some messages while not too many wait, whosever they are."""
    if contents.counts().main + count <= MAX_WAITING:
        queue.enqueue_batch([new_message() for _ in range(count)])


def new_message() -> NewMessage:
    """Return a message of some type; now and then one that cannot be worked on."""
    type, priority = random.choice(list(PRIORITIES.items()))
    payload: dict[str, Any] = {"account": random.randint(1000, 9999)}
    if random.random() < FAULT_CHANCE:
        payload["fault"] = FAULT
    return NewMessage(type=type, payload=payload, priority=priority)


def clear_up(contents: QueueAdmin) -> None:
    """Delete the demo's dead and archived messages beyond the newest 50."""
    places: tuple[MessageState, ...] = ("dead", "archived")
    for place in places:
        contents.delete(demo_ids(contents, place)[RETENTION_COUNT:], source=place)


def demo_ids(contents: QueueAdmin, place: MessageState) -> list[str]:
    """Return the ids of the demo's messages in a place, the newest first."""
    page = contents.list(place, limit=MAX_MESSAGES_PER_PAGE, where=Filter(search=PREFIX))
    return [message.id for message in page.messages if message.type.startswith(PREFIX)]
