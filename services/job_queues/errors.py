"""What can be wrong with a job, each with one sentence."""

from __future__ import annotations

from queue_manager.core.errors import AppError


class InvalidJob(AppError):
    """A job, or an argument about one, has not the accepted form: names the `field` and what is accepted."""

    def __init__(self, field: str, accepted: str) -> None:
        super().__init__(f"{field}: {accepted}")
        self.field = field


class UnknownJob(AppError):
    """There is no such job, or no function registered for its name."""


class WrongState(AppError):
    """The job is in a state in which this cannot be done."""


class NotTheOnly(AppError):
    """A job that must be the only live one of its kind is not."""
