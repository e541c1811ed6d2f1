"""Errors of the message queue."""

from __future__ import annotations

from queue_manager.core.errors import AppError, InvalidField, Unavailable


class InvalidMessage(InvalidField):
    """A message or an argument is invalid; names the `field` and what it must be."""

    def __init__(self, field: str, requirement: str) -> None:
        super().__init__(field, f"must be {requirement}")


class MessageTooLarge(InvalidMessage):
    """A payload exceeds the maximum size."""


class LockLost(AppError):
    """The caller does not hold the lock of the message; nothing was written."""


class UnknownMessage(AppError):
    """There is no message with this id in any state."""


class MessageInProgress(AppError):
    """A consumer is processing the message, so it cannot be changed."""


class QueueFull(AppError):
    """The server's memory is full: messages cannot be enqueued, but can be dequeued and acknowledged."""


class QueueUnavailable(Unavailable):
    """The queue's server did not answer, so the outcome is unknown; or it refused, as a replica does."""
