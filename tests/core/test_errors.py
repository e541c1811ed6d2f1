"""Texts of errors: readable, and without internals of the drivers."""

from __future__ import annotations

import pickle
from uuid import UUID

import dns.resolver
import pytest
import redis
from kombu.exceptions import OperationalError
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    CursorNotFound,
    DuplicateKeyError,
    ExecutionTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
    WTimeoutError,
)

from queue_manager.core.errors import (
    MAX_ERROR_TEXT_LENGTH,
    ErrorText,
    PermanentError,
    Unavailable,
    reason,
    typed_reason,
    unavailable_server,
)

REFUSED = "127.0.0.1:1: [Errno 111] Connection refused"
ORDER = UUID(int=7)
SESSION = '{ lsid: { id: UUID("0f"), uid: BinData(0, E3) }, txnNumber: 4 }'
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NOT_CONFIRMED = {"code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting for replication timed out"}


def labelled(error: PyMongoError, label: str) -> PyMongoError:
    error._add_error_label(label)
    return error


def unresolved(cause: Exception | None) -> PyMongoError:
    """Return the error of a mongodb+srv:// URL."""
    error = ConfigurationError("x")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ServerSelectionTimeoutError(
                f"{REFUSED} (configured timeouts: socketTimeoutMS: 1ms), Timeout: 5.0s, Topology Description: <T id: 6>"
            ),
            REFUSED,
        ),
        (BulkWriteError({"writeErrors": [], "writeConcernErrors": [NOT_CONFIRMED]}), NOT_CONFIRMED["errmsg"]),
        (BulkWriteError({"writeErrors": [{"index": 0, "code": 8, "errmsg": "bad"}]}), "bad"),
        (WriteConcernError("interrupted", 11602, {"errmsg": "interrupted", "code": 11602}), "interrupted"),
        (
            OperationFailure("x", 206, {"errmsg": f"Cannot use {SESSION} now for {{ a: 1 }}"}),
            "Cannot use now for { a: 1 }",
        ),
        (DuplicateKeyError("x", 11000, {"errmsg": "E11000 dup key: { a: 1 }"}), "E11000 dup key: { a: 1 }"),
        (OperationFailure("failed", 1, {"ok": 0}), "failed"),
        (NotPrimaryError("not primary", {"errmsg": "not primary", "code": 10107}), "not primary"),
        (
            redis.ResponseError(f"{WRONG_TYPE} script: 0f1e, on @user_script:11."),
            f"{WRONG_TYPE}; `queue-manager doctor` names the key",
        ),
        (
            Unavailable(f"Redis refused a command ({WRONG_TYPE}; `queue-manager doctor` names the key)"),
            f"Redis refused a command ({WRONG_TYPE}; `queue-manager doctor` names the key)",
        ),
        (ValueError("boom"), "boom"),
        (ValueError("no file a\udcff"), "no file a?"),
        (KeyError(ORDER), f"{ORDER!r}"),
        (ValueError(f"malformed: {{'order': {ORDER!r}}}"), f"malformed: {{'order': {ORDER!r}}}"),
        (OperationFailure("x", 26, {"errmsg": 'no collection UUID("0f")'}), "no collection"),
        (ValueError(), "ValueError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_text_has_no_internals_of_the_driver(error: Exception, text: str) -> None:
    assert reason(error) == text


class TariffMissing(Exception):
    """An error of a user's function."""


class CardDeclined(PermanentError):
    """A subclass of one of ours, in the package of a user."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("code"), "KeyError: 'code'"),
        (AssertionError(), "AssertionError"),
        (TariffMissing(42), "TariffMissing: 42"),
        (Unavailable("no server"), "no server"),
        (CardDeclined("no money"), "no money"),
        (AutoReconnect("no server"), "no server"),
    ],
)
def test_errors_of_other_packages_are_shown_with_their_type_once(error: Exception, text: str) -> None:
    assert typed_reason(error) == text


@pytest.mark.parametrize("text", [" " * 1_000_000, "{ UUID " + "Timestamp(1), " * 100_000], ids=["spaces", "words"])
@pytest.mark.timeout(30)
def test_long_error_text_is_truncated_quickly(text: str) -> None:
    assert reason(ValueError(text)) == text[:MAX_ERROR_TEXT_LENGTH]


@pytest.mark.parametrize(
    ("error", "server"),
    [
        (AutoReconnect("x"), "MongoDB"),
        (redis.ConnectionError("x"), "Redis"),
        (redis.TimeoutError("x"), "Redis"),
        (OperationalError("x"), "the broker"),
        (Unavailable("x"), "a server"),
        (redis.ResponseError("x"), None),
        (OperationFailure("x"), None),
        (OperationFailure("not authorized", 13), None),
        (OperationFailure("operation exceeded time limit", 262), "MongoDB"),
        (OperationFailure("the other member does not answer", 6), "MongoDB"),
        (labelled(OperationFailure("x", 8000), "RetryableWriteError"), "MongoDB"),
        (labelled(OperationFailure("x", 251), "TransientTransactionError"), "MongoDB"),
        (ExecutionTimeout("x"), "MongoDB"),
        (CursorNotFound("x", 43), "MongoDB"),
        (WriteConcernError("the server shuts down", 91, {}), "MongoDB"),
        (WTimeoutError("x", 64, NOT_CONFIRMED), "MongoDB"),
        (BulkWriteError({"writeErrors": [], "writeConcernErrors": [NOT_CONFIRMED]}), "MongoDB"),
        (BulkWriteError({"writeErrors": [{"code": 112}], "writeConcernErrors": []}), "MongoDB"),
        (BulkWriteError({"writeErrors": [{"code": 112}, {"code": 11_000}], "writeConcernErrors": []}), None),
        (BulkWriteError({"writeErrors": [{"code": 11_000}], "writeConcernErrors": [NOT_CONFIRMED]}), None),
        (unresolved(dns.resolver.LifetimeTimeout(timeout=2, errors=[])), "MongoDB"),
        (unresolved(dns.resolver.NoNameservers()), "MongoDB"),
        (unresolved(dns.resolver.NoResolverConfiguration()), "MongoDB"),
        (unresolved(dns.resolver.NXDOMAIN()), None),
        (unresolved(dns.resolver.NoAnswer()), None),
        (unresolved(None), None),
        (dns.resolver.NoNameservers(), None),
        (KeyError("x"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_text_names_the_unavailable_server(error: Exception, server: str | None) -> None:
    assert unavailable_server(error) == reason(error).server == typed_reason(error).server == server


@pytest.mark.parametrize("text", ["MISCONF Errors writing to the AOF file", "NOREPLICAS Not enough good replicas."])
def test_error_text_names_the_server_that_refuses_writes(text: str) -> None:
    error = redis.ResponseError(text)
    assert (unavailable_server(error), reason(error).server) == (None, "Redis")


def test_error_text_keeps_the_server_after_pickling() -> None:
    text = pickle.loads(pickle.dumps(ErrorText.of("said", AutoReconnect("x"))))
    assert (text, text.server) == ("said", "MongoDB")


def test_text_of_an_error_without_text_is_its_type_and_cause() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert reason(Odd()) == "its text cannot be rendered (RuntimeError)"
