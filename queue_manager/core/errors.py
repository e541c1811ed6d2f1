"""The errors that mean something here. Everything else is retried by the policy of its task."""

from __future__ import annotations

from datetime import timedelta


class AppError(Exception):
    """Base of every error that Queue Manager raises on purpose."""


class ConfigurationError(AppError):
    """A setting is wrong: names it, its value (secrets masked) and what is accepted."""


class PermanentError(AppError):
    """It will fail the same way every time: recorded at once, never retried."""


class LeaseLost(AppError):
    """Somebody else holds the item now: whatever was being done must not be written."""


class ScanFailed(AppError):
    """A scan did what it could and met errors on the way: they are in its report and in the log."""


class NotYetDue(AppError):
    """An item was started before its time by the server's clock: it comes back, and no attempt is used up."""

    def __init__(self, remaining: timedelta) -> None:
        super().__init__(f"due in {remaining.total_seconds():.3f} s by the server's clock")
        self.remaining = remaining
