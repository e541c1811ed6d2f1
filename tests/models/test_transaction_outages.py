"""Transactions while members of MongoDB do not answer, or there is no primary."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymongo.client_session import ClientSession

from models import transaction
from models.database import collection
from models.transaction import COMMAND_TIMEOUT, MAX_TRANSACTION, commands, transact
from queue_manager.core.clock import seconds
from tests.e2e.replica_set import Member, ReplicaSet, own_replica_set
from tests.eventually import eventually

pytestmark = pytest.mark.crash


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplicaSet]:
    with own_replica_set(tmp_path, monkeypatch) as running:
        collection("accounts").insert_one({"_id": "a", "amount": 0})
        yield running


def freeze(member: Member) -> None:
    os.kill(member.pid, signal.SIGSTOP)


def test_transaction_abandons_an_unresponsive_primary(members: ReplicaSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "MAX_TRANSACTION", seconds(60))  # an election takes longer on a busy machine
    before = eventually(members.primary)
    calls: list[float] = []

    def add(session: ClientSession) -> None:
        if not calls:
            freeze(before)
        calls.append(time.monotonic())
        with commands():
            collection("accounts").update_one({"_id": "a"}, {"$inc": {"amount": 1}}, session=session)

    try:
        transact(add)
    finally:
        os.kill(before.pid, signal.SIGCONT)
    first, second, *_ = calls
    assert second - first < MAX_TRANSACTION.total_seconds()
    assert collection("accounts").find_one({"_id": "a"}) == {"_id": "a", "amount": 1}


def test_a_commit_that_a_frozen_primary_does_not_answer_happens_once(
    members: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "MAX_TRANSACTION", seconds(60))  # an election takes longer on a busy machine
    before = eventually(members.primary)
    calls: list[float] = []

    def add(session: ClientSession) -> None:
        with commands():
            collection("accounts").update_one({"_id": "a"}, {"$inc": {"amount": 1}}, session=session)
        if not calls:
            freeze(before)
        calls.append(time.monotonic())

    try:
        transact(add)
    finally:
        os.kill(before.pid, signal.SIGCONT)
    eventually(members.is_complete)
    assert collection("accounts").find_one({"_id": "a"}) == {"_id": "a", "amount": 1}


def test_a_terminated_process_does_not_wait_for_a_primary(members: ReplicaSet) -> None:
    def end(session: ClientSession) -> None:
        collection("accounts").update_one({"_id": "a"}, {"$inc": {"amount": 1}}, session=session)
        for member in members.members:
            member.kill()
        raise SystemExit

    began = time.monotonic()
    with pytest.raises(SystemExit):
        transact(end)
    assert time.monotonic() - began < COMMAND_TIMEOUT.total_seconds()
