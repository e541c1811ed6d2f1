"""Errors with a defined handling. All other errors are retried by the policy of their task."""

from __future__ import annotations

import re
from datetime import timedelta


class AppError(Exception):
    """Base of every error that Queue Manager raises on purpose."""


class Unavailable(AppError):
    """A server, which the message names, did not answer in time."""


class ConfigurationError(AppError):
    """A setting is invalid; names it, its value (secrets redacted) and what it must be."""


class PermanentError(AppError):
    """The operation will always fail, so it is not retried."""


class ScanFailed(AppError):
    """A scan finished with errors, which are in its report and in the log."""


class NotYetDue(AppError):
    """An item was started before its due time by the server's clock; it is rescheduled without using an attempt."""

    def __init__(self, remaining: timedelta) -> None:
        super().__init__(f"due in {remaining.total_seconds():.3f} s by the server's clock")
        self.remaining = remaining


class Contended(NotYetDue):
    """Another transaction has locked a document; the item is rescheduled without using an attempt."""

    def __init__(self, remaining: timedelta) -> None:
        super().__init__(remaining)
        self.args = ("another transaction holds the document",)


class ContinueLater(AppError):
    """An item did part of its work and is rescheduled for the rest without using an attempt."""


_MISSING_INDEX = re.compile(r"ns=(\S+?)\W.*hint provided does not correspond", re.DOTALL)


def typed_reason(error: BaseException) -> str:
    """Return the text of an error, prefixed by its type if that is a built-in one: `KeyError: 'code'`."""
    kind = type(error)
    return f"{kind.__name__}: {reason(error)}" if kind.__module__ == "builtins" else reason(error)


def reason(error: BaseException) -> str:
    """Return the text of a driver's error, without the topology description that PyMongo appends.

    The error for a missing index is replaced, because MongoDB does not name the cause.
    """
    text = str(error)
    if missing := _MISSING_INDEX.search(text):
        return f"an index of {missing[1]} is missing: run `queue-manager migrate` while its system is switched on"
    return text.split(", Timeout:")[0] or type(error).__name__
