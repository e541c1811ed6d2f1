"""The errors that mean something here. Everything else is retried by the policy of its task."""

from __future__ import annotations

import re
from datetime import timedelta


class AppError(Exception):
    """Base of every error that Queue Manager raises on purpose."""


class Unavailable(AppError):
    """A server did not answer in time: names it."""


class ConfigurationError(AppError):
    """A setting is wrong: names it, its value (secrets masked) and what is accepted."""


class PermanentError(AppError):
    """It will fail the same way every time: recorded at once, never retried."""


class ScanFailed(AppError):
    """A scan did what it could and met errors on the way: they are in its report and in the log."""


class NotYetDue(AppError):
    """An item was started before its time by the server's clock: it comes back, and no attempt is used up."""

    def __init__(self, remaining: timedelta) -> None:
        super().__init__(f"due in {remaining.total_seconds():.3f} s by the server's clock")
        self.remaining = remaining


class Contended(NotYetDue):
    """Another transaction holds a document: the item comes back after `remaining`, and no attempt is used up."""

    def __init__(self, remaining: timedelta) -> None:
        super().__init__(remaining)
        self.args = ("another transaction holds the document",)


class HandOn(AppError):
    """An item did a part of its work and comes back for the rest; no attempt is used up."""


_MISSING_INDEX = re.compile(r"ns=(\S+?)\W.*hint provided does not correspond", re.DOTALL)


def typed_reason(error: BaseException) -> str:
    """Return what an error says, with its type if that is one of Python's own: `KeyError: 'code'`."""
    kind = type(error)
    return f"{kind.__name__}: {reason(error)}" if kind.__module__ == "builtins" else reason(error)


def reason(error: BaseException) -> str:
    """Return what a driver's error says, without the view of the whole topology that PyMongo adds.

    Of a query that needs an index that is missing, MongoDB says all but that.
    """
    said = str(error)
    if missing := _MISSING_INDEX.search(said):
        return f"an index of {missing[1]} is missing: run `queue-manager migrate` while its system is switched on"
    return said.split(", Timeout:")[0] or type(error).__name__
