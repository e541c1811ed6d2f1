"""Transactions that meet the locks of other transactions, running or abandoned."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError

from models.database import client, collection, within
from models.transaction import MAX_TRANSACTION, end_abandoned, transact
from queue_manager.core.clock import seconds
from queue_manager.core.errors import Contended
from queue_manager.core.settings import settings
from tests.eventually import eventually
from tests.real_servers import Servers

pytestmark = pytest.mark.usefixtures("clean")

Lock = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def lock(servers: Servers) -> Iterator[Lock]:
    """Start processes that lock an account in a transaction."""
    program = Path(__file__).with_name("abandoned.py")
    with ExitStack() as stack:

        def start(account: str) -> subprocess.Popen[str]:
            collection("accounts").insert_one({"_id": account})
            command = [sys.executable, str(program), settings().mongo_db_url, account]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            return process

        with transactions_living(seconds(150)):  # longer than a test waits
            yield start
    eventually(can_write_all)  # the next test deletes the accounts


@contextmanager
def transactions_living(limit: timedelta) -> Iterator[None]:
    """Let MongoDB keep the locks of an abandoned transaction for this long."""
    admin, name = client().admin, "transactionLifetimeLimitSeconds"
    before = admin.command({"getParameter": 1, name: 1})[name]
    admin.command({"setParameter": 1, name: int(limit.total_seconds())})
    try:
        yield
    finally:
        admin.command({"setParameter": 1, name: before})


def can_write_all() -> bool:
    try:
        transact(lambda session: collection("accounts").update_many({}, {"$set": {"over": True}}, session=session))
    except Contended:  # the server has not noticed yet that a connection is closed
        return False
    return True


def write(account: str) -> None:
    def act(session: ClientSession) -> None:
        collection("accounts").update_one({"_id": account}, {"$set": {"by": "us"}}, session=session)

    transact(act)


def written_by(account: str) -> object:
    document = collection("accounts").find_one({"_id": account})
    assert document is not None
    return document.get("by")


def test_abandoned_transaction_of_a_killed_process_is_aborted(lock: Lock) -> None:
    lock("a").kill()
    eventually(can_write_all)
    assert written_by("a") is None


def test_transaction_of_a_running_process_is_not_aborted(lock: Lock) -> None:
    lock("a")
    with pytest.raises(Contended):
        write("a")
    assert end_abandoned() == 0


def test_only_the_abandoned_one_of_two_transactions_is_aborted(lock: Lock) -> None:
    lock("a").kill()
    lock("b")
    eventually(lambda: end_abandoned() == 1)
    write("a")
    with pytest.raises(Contended):
        write("b")
    assert (written_by("a"), written_by("b")) == ("us", None)


def test_transaction_ends_at_the_deadline_of_its_caller() -> None:
    calls = []

    def act(session: ClientSession) -> None:
        calls.append(time.monotonic())
        time.sleep(0.3)
        collection("accounts").find_one({}, session=session)

    began = time.monotonic()
    with pytest.raises(PyMongoError) as raised, within(seconds(0.2)):
        transact(act)
    assert raised.value.timeout
    assert len(calls) == 1
    assert time.monotonic() - began < MAX_TRANSACTION.total_seconds() / 2
