"""What can go wrong with a message, each with one sentence."""

from __future__ import annotations

from queue_manager.core.errors import AppError


class InvalidMessage(AppError):
    """A message, or an argument about one, has not the accepted form: names the `field` and what is accepted."""

    def __init__(self, field: str, accepted: str) -> None:
        super().__init__(f"{field}: accepted is {accepted}")
        self.field = field


class MessageTooLarge(InvalidMessage):
    """A payload has more bytes than are accepted."""


class LockLost(AppError):
    """The caller does not hold the message any more, or never did: nothing was written."""


class UnknownMessage(AppError):
    """There is no message with this id anywhere."""


class MessageHeld(AppError):
    """A consumer is working on the message, so it cannot be changed."""


class SearchUnfinished(AppError):
    """The search for a message took its time among those of other producers; searching again goes on from there."""


class QueueFull(AppError):
    """The server's memory is full, so it takes no new message; what is there can still be taken and acknowledged."""


class QueueUnavailable(AppError):
    """The server of the queue did not answer; whether it did what was asked is not known."""
