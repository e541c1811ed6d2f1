"""Transactions that wait neither for a member that does not answer, nor for the locks of processes that died.

A command of a transaction has `COMMAND_TIMEOUT`, after which the driver selects the primary again: the member that was
asked may be frozen or unreachable while the others have elected another. The driver alone would wait for it as long as
the whole transaction may take. An abort takes at most `ABORT_TIMEOUT`, so that it does not delay a shutdown.

When a process dies, MongoDB keeps its transaction, with the locks, for a minute or more
(`transactionLifetimeLimitSeconds`). The next transaction that meets such a lock ends it. The transaction of a living
process is never ended: it is not abandoned while its connection is open.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from typing import TypeVar

from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure, PyMongoError

from models import database
from models.database import APP_NAME, Document, is_time_over, within
from queue_manager.core.clock import seconds
from queue_manager.core.errors import Contended
from queue_manager.core.log import get_logger

T = TypeVar("T")

MAX_TRANSACTION = seconds(15)  # an election takes less; the driver would retry for two minutes
COMMAND_TIMEOUT = seconds(4)  # of the commands that read, of those that write, and of a commit
ABORT_TIMEOUT = seconds(0.5)  # MongoDB aborts an abandoned transaction itself
FIRST_RETRY_DELAY, MAX_RETRY_DELAY = 0.005, 0.3  # seconds
CONFLICT_TIMEOUT = 0.25  # seconds of retries while another transaction has locked a document
CONFLICT_WAIT = seconds(5)
_TRANSIENT, _UNKNOWN_COMMIT = "TransientTransactionError", "UnknownTransactionCommitResult"
_WRITE_CONFLICT = 112

log = get_logger("QM/database")


def transact(act: Callable[[ClientSession], T]) -> T:
    """Run `act` in a transaction; retry on write conflicts, elections and timeouts of commands.

    `act` may be called several times. What it does with the database between slow calls must be in blocks of
    `commands()`; without them, its commands share the time of the whole transaction.

    Raises:
        Contended: the transaction of a living process has locked a document.
        PyMongoError: of the driver, when `MAX_TRANSACTION` or the time of the caller is over, or a retry cannot help.
    """
    began = time.monotonic()

    def act_in_time(session: ClientSession) -> T:
        try:
            return act(session)
        except OperationFailure as error:
            is_late = time.monotonic() > began + CONFLICT_TIMEOUT
            if error.code == _WRITE_CONFLICT and is_late and not end_abandoned():
                raise Contended(CONFLICT_WAIT) from error
            raise  # retried

    with within(MAX_TRANSACTION), database.client().start_session() as session:
        attempt = 0
        while True:
            attempt += 1
            try:
                result = _attempt(act_in_time, session)
                _commit(session)
                return result
            except PyMongoError as error:
                if not _is_transient(error) or is_time_over():
                    raise
            _delay(attempt)


def commands() -> AbstractContextManager[None]:
    """Limit the time of the database operations in the block, so that a member that does not answer is given up."""
    return within(COMMAND_TIMEOUT)


def _attempt(act: Callable[[ClientSession], T], session: ClientSession) -> T:
    session.start_transaction()
    try:
        return act(session)
    except BaseException:  # even if the process is told to end
        with within(ABORT_TIMEOUT):
            session.abort_transaction()
        raise


def _commit(session: ClientSession) -> None:
    """Commit, and repeat it while the result is unknown: MongoDB commits a transaction only once."""
    for attempt in count(1):
        try:
            with commands():
                session.commit_transaction()
                return
        except PyMongoError as error:
            if not error.has_error_label(_UNKNOWN_COMMIT) or is_time_over():
                raise
        _delay(attempt)


def _is_transient(error: PyMongoError) -> bool:
    """Return True if the whole transaction may be retried, because nothing of it was written."""
    return error.has_error_label(_TRANSIENT) or (error.timeout and not error.has_error_label(_UNKNOWN_COMMIT))


def _delay(attempt: int) -> None:
    longest = min(FIRST_RETRY_DELAY * 1.5 ** min(attempt, 32), MAX_RETRY_DELAY)
    time.sleep(random.uniform(0, longest))


def end_abandoned() -> int:
    """End the transactions of processes that died; return their number, or 0 if the server does not show them to us."""
    try:
        abandoned = _abandoned()
        if abandoned:
            database.client().admin.command("killSessions", [{"id": one["lsid"]["id"]} for one in abandoned])
            log.warning("Ended transactions of processes that died", transactions=len(abandoned))
    except OperationFailure as error:
        log.info("Transactions of processes that died cannot be ended; MongoDB ends them", code=error.code)
        return 0
    return len(abandoned)


def _abandoned() -> list[Document]:
    """Return the idle sessions with an open transaction whose connection is closed."""
    stages: list[Document] = [
        {"$currentOp": {"idleConnections": True, "idleSessions": True}},  # of this user: needs no privilege
        {"$match": {"appName": APP_NAME}},
        {"$project": {"type": 1, "client": 1, "lsid": 1}},
    ]
    operations = list(database.client().admin.aggregate(stages))
    connected = {one.get("client") for one in operations if one["type"] != "idleSession"}
    return [one for one in operations if one["type"] == "idleSession" and one.get("client") not in connected]
