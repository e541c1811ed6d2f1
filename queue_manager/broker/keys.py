"""The names that the broker uses in Redis: our own, so that other Celery applications may use the same database."""

from __future__ import annotations

DEFAULT_QUEUE = "queue-manager"
FOREIGN_DEFAULT_QUEUE = "celery"
"""The default queue of every other Celery application, and of our own until release 0.1."""

UNACKED = "qm:unacked"
UNACKED_INDEX = "qm:unacked_index"
OLD_UNACKED = "unacked"
OLD_UNACKED_INDEX = "unacked_index"
"""The keys of every application that does not choose its own, and our own until release 0.1."""

SCHEDULE_PREFIX = "qm:beat:"
"""RedBeat's prefix: the key of an entry is `qm:beat:<name>`, and that of the schedule `qm:beat::schedule`."""

TRANSPORT_OPTIONS = {
    "unacked_key": UNACKED,
    "unacked_index_key": UNACKED_INDEX,
    "unacked_mutex_key": "qm:unacked_mutex",
    # Broadcasts and events: `control shutdown` of another application is not for our workers.
    "fanout_prefix": "/{db}/queue-manager.",
    "keyprefix_queue": "qm:binding:%s",
    "keyprefix_binding_permanent": "qm:binding_permanent:%s",
    "keyprefix_binding_deadlines": "qm:binding_deadlines",
}

SEPARATOR = "\x06\x16"
PRIORITIES = range(10)
"""Every priority that a stock producer can give a message; 0 is taken first. Its own steps are a part of these."""


def lists(queue: str) -> list[str]:
    """Return the lists of a queue, one for each priority."""
    return [list_of(queue, priority) for priority in PRIORITIES]


def list_of(queue: str, priority: int) -> str:
    return f"{queue}{SEPARATOR}{priority}" if priority else queue
