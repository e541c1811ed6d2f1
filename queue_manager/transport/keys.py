"""The names that the broker uses in Redis."""

from __future__ import annotations

UNACKED = "unacked"
SEPARATOR = "\x06\x16"
PRIORITIES = range(10)
"""Every priority that a stock producer can give a message; 0 is taken first. Its own steps are a part of these."""


def lists(queue: str) -> list[str]:
    """Return the lists of a queue, one for each priority."""
    return [list_of(queue, priority) for priority in PRIORITIES]


def list_of(queue: str, priority: int) -> str:
    return f"{queue}{SEPARATOR}{priority}" if priority else queue
