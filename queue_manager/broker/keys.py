"""Names of the broker's keys in Redis: not kombu's, so that other Celery applications may use the same database."""

from __future__ import annotations

DEFAULT_QUEUE = "queue-manager"
FOREIGN_DEFAULT_QUEUE = "celery"
"""Default queue of every other Celery application, and of Queue Manager until release 0.1."""

UNACKED = "qm:unacked"
UNACKED_INDEX = "qm:unacked_index"
OLD_UNACKED = "unacked"
OLD_UNACKED_INDEX = "unacked_index"
"""Keys of every application that does not set others, and of Queue Manager until release 0.1."""

SCHEDULE_PREFIX = "qm:beat:"
"""RedBeat's prefix: the key of an entry is `qm:beat:<name>`, and that of the schedule `qm:beat::schedule`."""

TRANSPORT_OPTIONS = {
    "unacked_key": UNACKED,
    "unacked_index_key": UNACKED_INDEX,
    "unacked_mutex_key": "qm:unacked_mutex",
    # Broadcasts and events: `control shutdown` of another application must not reach our workers.
    "fanout_prefix": "/{db}/queue-manager.",
    "keyprefix_queue": "qm:binding:%s",
    "keyprefix_binding_permanent": "qm:binding_permanent:%s",
    "keyprefix_binding_deadlines": "qm:binding_deadlines",
}

SEPARATOR = "\x06\x16"
PRIORITIES = range(10)
"""All priorities of kombu; 0 is taken first. Stock producers use some of them."""


def list_of(queue: str, priority: int) -> str:
    return f"{queue}{SEPARATOR}{priority}" if priority else queue
