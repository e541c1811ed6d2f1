"""Errors of the job queues."""

from __future__ import annotations

from queue_manager.core.errors import AppError


class InvalidJob(AppError):
    """A job or an argument is invalid; names the `field` and what it must be."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class UnknownJob(AppError):
    """There is no such job, or no function is registered for its name."""


class WrongState(AppError):
    """The state of the job does not allow the operation."""
