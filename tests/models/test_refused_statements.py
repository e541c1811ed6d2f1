"""Each single statement of jobs and due documents meets an outage of MongoDB: nothing is lost or done twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from dev.servers import Mongo
from models import database, failed_item, job
from models.database import Document, is_outage, server_now
from queue_manager.core.clock import hours, minutes
from queue_manager.core.errors import AppError
from services.job_queues import Jobs
from tests.job_lab import Lab
from tests.models.test_mongodb_refusals import _own_mongodb, refusing
from tests.rooms import AgingClock, scan
from tests.services.test_due_documents import declare, get_account, item_of, make_account, work_on

__all__ = ["_own_mongodb", "refusing"]
pytestmark = pytest.mark.slow

HOW: dict[str, Document] = {
    "not confirmed": {"writeConcernError": {"code": 64, "errmsg": "waiting", "errInfo": {"wtimeout": True}}},
    "interrupted": {"errorCode": 11602},
    "out of time": {"errorCode": 262},
    "closed connection": {"closeConnection": True},
}
SESSION_COMMANDS = ("endSessions", "hello", "ping")


class FailStatement(CommandListener):
    """Has MongoDB refuse the statement with this number, counted from 0; `refused` names it."""

    def __init__(self, mongo: Mongo, number: int, how: Document) -> None:
        self.refused = ""
        self._left, self._how = number, how
        self._admin = MongoClient[Document](mongo.url).admin

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name in SESSION_COMMANDS:
            return
        if self._left == 0:
            self.refused = f"{event.command_name} {event.command[event.command_name]}"
            # The driver tries most statements a second time: twice, so that the caller meets the error.
            data = {"failCommands": [event.command_name], "appName": database.APP_NAME, **self._how}
            self._admin.command("configureFailPoint", "failCommand", mode={"times": 2}, data=data)
        self._left -= 1

    def succeeded(self, event: CommandSucceededEvent) -> None: ...

    def failed(self, event: CommandFailedEvent) -> None: ...

    def close(self) -> None:
        self._admin.command("configureFailPoint", "failCommand", mode="off")
        self._admin.client.close()


@contextmanager
def failing(mongo: Mongo, number: int, how: Document) -> Iterator[FailStatement]:
    listener = FailStatement(mongo, number, how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_listeners", lambda: [listener])
        database.close()
        try:
            yield listener
        finally:
            listener.close()
            database.close()


def each_statement(mongo: Mongo, how: Document, act: Callable[[], object]) -> Iterator[Exception | None]:
    """Call `act` again and again, each time with the next statement refused, at last with none; yield its error."""
    for number in count():
        error: Exception | None = None
        with failing(mongo, number, how) as statements:
            try:
                act()
            except (AppError, database.Error) as raised:
                error = raised
        assert error is None or isinstance(error, AppError) or is_outage(error), statements.refused
        yield error
        if not statements.refused:
            return


how_refused = pytest.mark.parametrize("how", HOW.values(), ids=HOW)


@how_refused
def test_jobs_are_stored_and_executed_once(how: Document, refusing: Mongo) -> None:
    lab, numbers, stored = Lab(server_now), count(), list[int]()

    def act() -> None:
        number = next(numbers)
        lab.run("mail", number)
        stored.append(number)
        lab.dispatch(epoch=1)
        lab.run_through("mail")

    for _ in each_statement(refusing, how, act):
        # The worker that could not go on has ended, and the lease of its job.
        executing = {"claim": {"$exists": True}}
        job.jobs().update_many(executing, {"$set": {"claim.claimed_until": server_now() - minutes(1)}})
        lab.dispatch(epoch=1)
        lab.run_through("mail")
    ran = [number for (number,) in lab.ran]
    assert len(ran) == len({*ran})
    assert {*stored} <= {*ran}
    assert lab.states() == {"success": len(ran)}
    assert len(stored) > 10


@how_refused
@pytest.mark.parametrize(
    ("operation", "state", "changed"),
    [
        (lambda jobs, id: jobs.cancel(id), "pending", {"canceled": 1}),
        (lambda jobs, id: jobs.retry(id), "success", {"pending": 1}),
        (lambda jobs, id: jobs.reschedule(id, priority=5), "pending", {"pending": 1}),
        (lambda jobs, id: jobs.remove(id), "success", {}),
        (lambda jobs, _: jobs.clear(["success"]), "success", {}),
    ],
    ids=["cancel", "retry", "reschedule", "remove", "clear"],
)
def test_an_interrupted_operation_happens_completely_or_not_at_all(
    operation: Callable[[Jobs, str], object], state: str, changed: dict[str, int], how: Document, refusing: Mongo
) -> None:
    lab = Lab(server_now)

    def stored() -> str:
        job.jobs().delete_many({})
        id = lab.run("mail", 1)
        if state == "success":
            lab.run_through("mail")
        return id

    ids = [stored()]
    for error in each_statement(refusing, how, lambda: operation(lab.jobs, ids[-1])):
        assert lab.states() == changed or (error is not None and lab.states() == {state: 1})
        assert lab.jobs.count() == sum(lab.states().values())
        ids.append(stored())


@how_refused
def test_documents_are_written_once_and_each_has_its_call_of_after(
    how: Document, refusing: Mongo, clock: AgingClock
) -> None:
    system, told = declare(lambda _: {"$set": {"status": "expired"}, "$inc": {"times": 1}}), set[Any]()
    system.after(lambda written: told.update(one.id for one in written))
    work = work_on(system, clock)
    accounts = [make_account()]

    def act() -> None:
        scan(work)
        work.execute_batch([item_of(work, one) for one in accounts])

    for _ in each_statement(refusing, how, act):
        work.execute_batch([item_of(work, one) for one in accounts])
        for item in scan(work.after_calls):
            work.after_calls.repeat(item.args[0])
        accounts.append(make_account())
    work.execute_batch([item_of(work, one) for one in accounts])
    assert {get_account(one)["times"] for one in accounts} == {1}
    assert told >= {*accounts}
    assert len(accounts) > 10


@how_refused
def test_a_failure_is_recorded_or_the_item_is_redelivered(how: Document, refusing: Mongo, clock: AgingClock) -> None:
    work = work_on(declare(), clock)
    account = make_account()
    item = item_of(work, account)
    for error in each_statement(refusing, how, lambda: work.give_up(item, error="boom")):
        if error is None:
            failure = failed_item.get("trial-end", account)
            assert failure is not None
            assert failure.error == "boom"
        else:
            clock.advance(hours(1))  # an earlier one may have been recorded
            assert [one.lease for one in scan(work)] == [item.lease]
