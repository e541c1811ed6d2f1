"""Errors with a defined handling. All other errors are retried by the policy of their task."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any


class AppError(Exception):
    """Base of every error that Queue Manager raises on purpose."""


class Unavailable(AppError):
    """A server, which the message names, did not answer in time."""


class ConfigurationError(AppError):
    """A setting is invalid; names it, its value (secrets redacted) and what it must be."""


class PermanentError(AppError):
    """The operation will always fail, so it is not retried."""


class InvalidField(AppError):
    """A value is invalid; names the `field`, and the `problem`: what it must be."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field, self.problem = field, problem


class MalformedBody(InvalidField):
    """A body is not JSON."""

    def __init__(self, why: str) -> None:
        super().__init__("body", f"must be JSON in UTF-8 ({why})")


class NotFound(AppError):
    """What a parameter, the `field`, names does not exist."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


@contextmanager
def prefix_fields(prefix: str) -> Iterator[None]:
    """Let an `InvalidField` name where the field is, such as `[3].`."""
    try:
        yield
    except InvalidField as error:
        error.field = f"{prefix}{error.field}"
        error.args = (f"{error.field}: {error.problem}",)
        raise


class ScanFailed(AppError):
    """A scan finished with errors, which are in its report and in the log."""


class FunctionExited(AppError):
    """A function raised an error that would end its process or its task, such as `SystemExit` or Celery's `Ignore`."""


class NotYetDue(AppError):
    """An item was started before its due time by the server's clock; it is rescheduled without using an attempt."""

    def __init__(self, remaining: timedelta) -> None:
        super().__init__(f"due in {remaining.total_seconds():.3f} s by the server's clock")
        self.remaining = remaining


class Contended(NotYetDue):
    """Another transaction has locked a document; the item is rescheduled without using an attempt."""

    def __init__(self, remaining: timedelta) -> None:
        super().__init__(remaining)
        self.args = ("other transactions hold the document",)


class ContinueLater(AppError):
    """An item did part of its work and is rescheduled for the rest without using an attempt."""


MAX_ERROR_TEXT_LENGTH = 2_000  # characters; of a longer text, the time to remove the internals grows with its square
_CONFIGURED_TIMEOUTS = re.compile(r" \(configured timeouts: [^)]*\)")
_APPENDED = re.compile(r", (?:Timeout: .*, Topology Description: |full error: \{).*", re.DOTALL)
# As MongoDB writes them, `{ id: UUID("…") }`: the ids of users, `{'id': UUID('…')}` in Python, are kept.
_SESSION = re.compile(r'\s*\{ [^{}]*(?:lsid|txnNumber|UUID|BinData|Timestamp)(?:[^{}]|\{[^{}]*\})*\}|\s*UUID\("[^)]*\)')
_MISSING_INDEX = re.compile(r"ns=[^.\s]+\.(\S+?)(?:Tree:|\s).*hint provided does not correspond", re.DOTALL)
_WRONG_TYPE = re.compile(r"(WRONGTYPE .* wrong kind of value)(?!;)(?: script: .*@user_script:\d+\.)?")
_OUTAGES = {
    "pymongo.errors.ConnectionFailure": "MongoDB",
    "pymongo.errors.ExecutionTimeout": "MongoDB",
    "pymongo.errors.WriteConcernError": "MongoDB",  # the server applied a write, and could not confirm it
    "redis.exceptions.ConnectionError": "Redis",
    "redis.exceptions.TimeoutError": "Redis",
    "kombu.exceptions.OperationalError": "the broker",
    f"{__name__}.{Unavailable.__qualname__}": "a server",
}
# Of mongodb+srv://. Other answers of DNS, such as that the name does not exist, are errors of the setting.
_DNS_OUTAGES = {"dns.exception.Timeout", "dns.resolver.NoNameservers", "dns.resolver.NoResolverConfiguration"}
_REFUSALS = {f"redis.exceptions.{name}" for name in ("ReadOnlyError", "MasterDownError", "OutOfMemoryError")}
_ANY_REFUSAL, _REFUSAL_CODES = "redis.exceptions.ResponseError", ("MISCONF ", "NOREPLICAS ")


# Replies of a MongoDB that cannot execute any command now, or not this one: it starts, stops, elects, has lost a member
# or its majority, or is overloaded. The driver has already tried most of them a second time.
_MONGODB_OUTAGE_CODES = {
    *(6, 7, 89, 9001),  # HostUnreachable, HostNotFound, NetworkTimeout, SocketException
    *(91, 11600, 11602),  # ShutdownInProgress, InterruptedAtShutdown, InterruptedDueToReplStateChange
    *(189, 10107),  # PrimarySteppedDown, NotWritablePrimary
    *(13435, 13436),  # NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary
    *(64, 100, 133, 134),  # WriteConcernTimeout, UnsatisfiableWriteConcern, no member to read from, no majority yet
    *(24, 50, 112, 262),  # LockTimeout, MaxTimeMSExpired, WriteConflict, ExceededTimeLimit
    *(371, 14031),  # UserWritesBlocked, OutOfDiskSpace: until an operator has made room, or allows writes
    18,  # AuthenticationFailed: until the server accepts the credentials again
    *(43, 251),  # CursorNotFound, NoSuchTransaction: the member that had it has restarted or stepped down
}
_MONGODB_OUTAGE_LABELS = ("RetryableWriteError", "TransientTransactionError")
LOGGED_OUT = "requires authentication"
"""In MongoDB's reply on a connection whose user was deleted. It stays so if the user is created again."""


_PLAIN_ERRORS = {"queue_manager", "pymongo", "bson", "redis", "kombu", "celery", "billiard"}
"""Packages whose errors need no type: their texts are sentences."""


class ErrorText(str):
    """The text of an error, with the server that is away or refuses writes, if any: see `log.OutageFilter`."""

    server: str | None = None

    @classmethod
    def of(cls, text: str, error: BaseException) -> ErrorText:
        found = cls(text)
        found.server = unavailable_server(error) or refusing_server(error)
        return found


def unavailable_server(error: BaseException) -> str | None:
    """Return the server whose outage an error means; `None` for other errors."""
    kinds = _kinds(error)
    if "pymongo.errors.OperationFailure" in kinds and _is_mongodb_outage(error):
        return "MongoDB"
    if "pymongo.errors.ConfigurationError" in kinds and not _DNS_OUTAGES.isdisjoint(_kinds(error.__cause__)):
        return "MongoDB"
    return next((_OUTAGES[kind] for kind in kinds if kind in _OUTAGES), None)


def is_expected(error: BaseException) -> bool:
    """Return True if one line explains an error: it is raised on purpose, or a server is unavailable."""
    is_refused = "kombu.exceptions.BatchPublishError" in _kinds(error)
    return isinstance(error, AppError) or is_refused or unavailable_server(error) is not None


def _kinds(error: object) -> list[str]:
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]


def refusing_server(error: BaseException) -> str | None:
    """Return the server that refuses every write for now, by an error of one; `None` for other errors."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    is_refusal = kind in _REFUSALS or (kind == _ANY_REFUSAL and str(error).startswith(_REFUSAL_CODES))
    return "Redis" if is_refusal else None


def _is_mongodb_outage(error: Any) -> bool:
    """Return True if MongoDB refused a command only for now. Of a bulk write, all writes that it refused must be so."""
    details = error.details if isinstance(error.details, dict) else {}
    if refused := details.get("writeErrors"):
        return all(one.get("code") in _MONGODB_OUTAGE_CODES for one in refused)
    if details.get("writeConcernErrors") or LOGGED_OUT in str(details.get("errmsg")):
        return True
    return error.code in _MONGODB_OUTAGE_CODES or any(map(error.has_error_label, _MONGODB_OUTAGE_LABELS))


def typed_reason(error: BaseException) -> ErrorText:
    """Return the text of an error, after its type unless that is ours or a driver's: `KeyError: 'code'`."""
    kind, text = type(error), reason(error)
    is_plain = isinstance(error, AppError) or kind.__module__.partition(".")[0] in _PLAIN_ERRORS
    is_prefixed = not is_plain and text != kind.__name__
    return ErrorText.of(f"{kind.__name__}: {text}" if is_prefixed else text, error)


def reason(error: BaseException) -> ErrorText:
    """Return the text of an error, without what PyMongo appends and without ids of sessions; truncated.

    PyMongo appends timeouts, the topology and the server's reply. The error for a missing index is replaced, because
    MongoDB does not name the cause; that for a key of another type says who names the key.
    """
    text = rendered(lambda: _message_of(getattr(error, "details", None)) or str(error))[:MAX_ERROR_TEXT_LENGTH]
    if missing := _MISSING_INDEX.search(text):
        text = f"an index of {missing[1]} is missing: run `queue-manager migrate` while its system is switched on"
    text = _WRONG_TYPE.sub(r"\1; `queue-manager doctor` names the key", text)
    text = _SESSION.sub("", _APPENDED.sub("", _CONFIGURED_TIMEOUTS.sub("", text)))
    return ErrorText.of(text or type(error).__name__, error)


def linked(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it refers to: causes, contexts, members of a group, and what a `Retry` wraps."""
    left: list[Any] = [error]
    seen = set[int]()
    while left:
        one = left.pop()
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
            left += [one.__cause__, one.__context__, getattr(one, "exc", None), *members]


def drop_tracebacks(error: BaseException) -> None:
    """Release the frames of an error, with all their locals, when the error has been recorded and reported.

    A local that refers to the error makes a cycle, which would stay until a garbage collection, which is rare here.
    `traceback.clear_frames` would end a coroutine that caught the error and goes on.
    """
    for one in linked(error):
        one.with_traceback(None)  # an assignment fails if the error is a frozen dataclass


def clear_variables(error: BaseException) -> None:
    """Clear the local variables of the frames of an error, and of their callers that have ended.

    Its traceback keeps the lines. Otherwise an error that is kept keeps all that these frames have read.
    """
    for one in linked(error):
        traceback.clear_frames(one.__traceback__)
        frame = one.__traceback__ and one.__traceback__.tb_frame
        while frame is not None:
            try:
                frame.clear()
            except RuntimeError:  # it runs, and so do its callers
                break
            frame = frame.f_back


def rendered(render: Callable[[], str]) -> str:
    """Return a text, or why there is none: the class of a value that users give may fail to make it.

    Unpaired surrogates, which neither MongoDB nor Redis accepts, are replaced.
    """
    try:
        return render().encode("utf-8", "replace").decode()
    except Exception as error:
        return f"its text cannot be rendered ({type(error).__name__})"


def _message_of(details: Any) -> str | None:
    """Return the message in the reply of MongoDB that an error has."""
    if not isinstance(details, dict):
        return None
    for failed in ("writeErrors", "writeConcernErrors"):
        if details.get(failed):
            return _message_of(details[failed][0])
    message = details.get("errmsg")
    return message if isinstance(message, str) else None
