"""MongoDB answers commands with errors: which of them are outages, and which belong to the command."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from beat_schedule import SYSTEMS
from dev.servers import Mongo
from models import database, failed_item, job_attempt, schema, subscription
from models.database import Document, collection, is_outage, server_now
from queue_manager.core.settings import settings
from queue_manager.health import readings
from queue_manager.health_rules import Problem, Rule
from services.due_documents import Written
from services.due_documents.work import DocumentWork
from tests.e2e.commands import invoke
from tests.job_lab import Lab, lost_lease
from tests.real_servers import Servers
from tests.rooms import T0, AgingClock, make_room, make_work, scan
from tests.services.test_due_documents import OVER, declare, item_of, make_account, work_on

pytestmark = pytest.mark.slow

OUTAGES: dict[str, Document] = {
    "closed connection": {"closeConnection": True},
    "shuts down": {"errorCode": 91},
    "stepped down": {"errorCode": 189},
    "not primary": {"errorCode": 10107},
    "write conflict": {"errorCode": 112},
    "out of time": {"errorCode": 50},
    "out of time within the server": {"errorCode": 262},
    "unreachable shard": {"errorCode": 6},
    "not confirmed": {"errorCode": 64},
    "full disk": {"errorCode": 14031},
    "writes blocked": {"errorCode": 371},
    "refused credentials": {"errorCode": 18},
    "not confirmed in time": {"writeConcernError": {"code": 64, "errmsg": "waiting", "errInfo": {"wtimeout": True}}},
    "stopped before it was confirmed": {"writeConcernError": {"code": 91, "errmsg": "shutting down"}},
    "too few members": {"writeConcernError": {"code": 100, "errmsg": "not enough data-bearing nodes"}},
    "overloaded": {"errorCode": 8000, "errorLabels": ["RetryableWriteError"]},
}


@pytest.fixture(scope="module")
def refusing(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mongo]:
    with Mongo(tmp_path_factory.mktemp("refusing"), parameters={"enableTestCommands": "1"}) as mongo:
        yield mongo


@pytest.fixture(autouse=True)
def _own_mongodb(refusing: Mongo, clean: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process uses the MongoDB that refuses."""
    database.close()
    monkeypatch.setenv("MONGO_DB_URL", refusing.url)
    settings.cache_clear()
    for name in database.database().list_collection_names():
        collection(name).delete_many({})
    schema.migrate(SYSTEMS)  # a test may have dropped collections
    yield
    database.close()
    monkeypatch.undo()
    settings.cache_clear()


@contextmanager
def refused(refusing: Mongo, *commands: str, mode: Any = "alwaysOn", **how: Any) -> Iterator[None]:
    """Have MongoDB answer these commands in another way."""
    data = {"failCommands": [*commands], "appName": database.APP_NAME, **how}
    with MongoClient[Document](refusing.url) as client:
        client.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)
        try:
            yield
        finally:
            client.admin.command("configureFailPoint", "failCommand", mode="off")


def error_of(act: Callable[[], object]) -> PyMongoError:
    with pytest.raises(PyMongoError) as raised:
        act()
    return raised.value


@pytest.mark.parametrize("how", OUTAGES.values(), ids=OUTAGES)
def test_an_outage_is_recognized_for_every_command(how: Document, refusing: Mongo, clock: AgingClock) -> None:
    room = make_room()
    work = make_work(clock)
    acts: list[Callable[[], object]] = [
        lambda: collection("accounts").insert_one({}),
        lambda: collection("accounts").insert_many([{}, {}]),
    ]
    if "writeConcernError" not in how:
        acts.append(lambda: collection("accounts").find_one({}))
    with refused(refusing, "insert", "find", **how):
        errors = [error_of(act) for act in acts]
    assert [one for one in errors if not is_outage(one)] == []
    assert [item.args[0] for item in scan(work)] == [str(room)]


def test_a_forbidden_command_is_not_an_outage(refusing: Mongo) -> None:
    found = {}
    for code in (13, 91):
        with refused(refusing, "listIndexes", errorCode=code):
            found[code] = asyncio.run(readings.read()).mongodb
    rules = {code: one.rule for code, one in found.items() if isinstance(one, Problem)}
    assert rules == {13: Rule.SERVER_UNSUITABLE, 91: Rule.SERVER_AWAY}


@pytest.mark.parametrize("code", [13, 8000])
def test_a_refusal_without_an_outage_error_code_is_not_an_outage(code: int, refusing: Mongo) -> None:
    with refused(refusing, "insert", errorCode=code):
        assert not is_outage(error_of(lambda: collection("accounts").insert_one({})))


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "in a batch"])
def test_a_success_stands_although_its_failure_record_cannot_be_deleted(
    is_alone: bool, refusing: Mongo, clock: AgingClock
) -> None:
    system, told = declare(), list[Written]()
    system.after(told.extend)
    work: DocumentWork = work_on(system, clock)
    account = make_account()
    item = item_of(work, account)
    failed_item.record(system.name, account, OVER, error="boom", now=T0)
    with refused(refusing, "delete", errorCode=262):
        result = work.execute(*item.args, task_id="t") if is_alone else work.execute_batch([item])[0]
    assert isinstance(result, dict)
    assert result["success"] is True
    assert [one.id for one in told] == [account]


def test_failure_records_are_deleted_although_mongodb_was_killed(refusing: Mongo, clock: AgingClock) -> None:
    """MongoDB then estimates the number of documents as that of its last checkpoint, which may be too low."""
    system = declare()
    work: DocumentWork = work_on(system, clock)
    accounts = [make_account(), make_account()]
    failed_item.record(system.name, accounts[0], OVER, error="boom", now=T0)
    database.client().admin.command("fsync")  # a checkpoint
    failed_item.record(system.name, accounts[1], OVER, error="boom", now=T0)
    refusing.kill()
    refusing.start()
    for account in accounts:
        assert work.execute(*item_of(work, account).args, task_id="t")["success"] is True
        assert failed_item.get(system.name, account) is None


def test_a_refused_long_aggregation_is_not_repeated_until_its_time_limit(
    refusing: Mongo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "AGGREGATION_TIMEOUT", 60.0)
    began = time.monotonic()
    with refused(refusing, "aggregate", errorCode=262):
        assert is_outage(error_of(lambda: list(subscription.eligible(["seo"], until=T0, asked_since=T0))))
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "how",
    [{"writeConcernError": {"code": 11602, "errmsg": "interrupted"}}, {"errorCode": 11602}, {"closeConnection": True}],
    ids=["not confirmed", "interrupted", "closed connection"],
)
def test_migrate_continues_after_a_step_down_of_the_primary(how: Document, refusing: Mongo) -> None:
    for system in SYSTEMS:
        for name in system.collections():
            collection(name).drop()
    with refused(refusing, "createIndexes", mode={"times": 1}, **how):
        migrated = invoke("migrate")
    assert (migrated.returncode, migrated.stderr.count("Traceback")) == (0, 0)
    on = [system for system in SYSTEMS if system.is_switched_on(settings())]
    assert (
        schema.missing(schema.SHARED_INDEXES)
        == [name for system in on for name in schema.missing(system.collections())]
        == []
    )


def test_a_job_whose_start_lacked_a_majority_is_executed_after_a_majority_write(
    refusing: Mongo, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(server_now)
    ids = [lab.run("mail", number) for number in range(3)]
    renewed, renew = list[Any](), job_attempt.renew

    def note_renewal(id: Any, **options: Any) -> bool:
        renewed.append((str(id), len(lab.ran)))
        return renew(id, **options)

    monkeypatch.setattr(job_attempt, "renew", note_renewal)
    unconfirmed = OUTAGES["not confirmed in time"]
    lab.works["mail"] = lambda number, run: (
        number == 0 and refuse_once.enter_context(refused(refusing, "update", mode={"times": 1}, **unconfirmed))
    )
    with ExitStack() as refuse_once:
        lab.run_through("mail")
        lab.run_through("mail")
    assert renewed[0] == (ids[1], 1)
    assert [lab.state(id) for id in ids] == ["success"] * 3


TOO_LARGE = {"errorCode": 17419}
"""What MongoDB answers if a document would have more than 16 MB, as one of another program may."""


def test_a_job_that_reaches_16_mb_is_stored_without_its_history(refusing: Mongo) -> None:
    lab = Lab(server_now)
    refused_writes = ExitStack()

    def refuse_next(number: int = 0, run: Any = None) -> None:
        refused_writes.enter_context(refused(refusing, "update", mode={"times": 2 if run else 1}, **TOO_LARGE))

    id = lab.run("mail", 1)
    lab.works["mail"] = refuse_next
    with refused_writes:
        refuse_next()
        assert lab.run_through("mail").succeeded == 1
    assert [entry["state"] for entry in lab.jobs.get(id)["history"]] == ["success"]


def test_a_lost_job_that_cannot_be_changed_does_not_stop_others(refusing: Mongo) -> None:
    lab = Lab(server_now)
    lost_job = lab.run("mail", 1)
    lab.executing(lost_job)
    lost_lease(lost_job)
    lab.run("report", 2)
    with refused(refusing, "update", mode={"skip": 1}, **TOO_LARGE):  # the first is not about this job
        assert lab.names_dispatched() == ["report"]
    assert lab.names_dispatched() == ["mail"]
