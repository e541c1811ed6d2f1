"""Transactions that do not wait for the locks of processes that died.

When a process dies, MongoDB keeps its transaction, with the locks, for a minute or more
(`transactionLifetimeLimitSeconds`). The next transaction that meets such a lock ends it. The transaction of a living
process is never ended: it is not abandoned while its connection is open.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

from models import database
from models.database import APP_NAME, Document, within
from queue_manager.core.clock import seconds
from queue_manager.core.errors import Contended
from queue_manager.core.log import get_logger

T = TypeVar("T")

MAX_TRANSACTION = seconds(15)  # an election takes less; the driver would retry for two minutes
CONFLICT_TIMEOUT = 0.25  # seconds of retries while another transaction has locked a document
CONFLICT_WAIT = seconds(5)
_WRITE_CONFLICT = 112

log = get_logger("QM/database")


def transact(act: Callable[[ClientSession], T]) -> T:
    """Run `act` in a transaction; retry on write conflicts and elections. Raises the errors of `act` and of the driver.

    Raises:
        Contended: the transaction of a living process has locked a document.
    """
    ends_at = time.monotonic() + CONFLICT_TIMEOUT

    def act_in_time(session: ClientSession) -> T:
        try:
            return act(session)
        except OperationFailure as error:
            if error.code == _WRITE_CONFLICT and time.monotonic() > ends_at and not end_abandoned():
                raise Contended(CONFLICT_WAIT) from error
            raise  # retried

    with within(MAX_TRANSACTION), database.client().start_session() as session:
        return session.with_transaction(act_in_time)


def end_abandoned() -> int:
    """End the transactions of processes that died; return their number, 0 if the server does not let us see them."""
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
