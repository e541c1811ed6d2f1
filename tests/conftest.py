"""The real servers that every test runs against, and a clean database for each. Settings of the user do not apply."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, chdir
from importlib import import_module
from inspect import unwrap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import pytest
import redis
from xdist import is_xdist_controller

from beat_schedule import SYSTEMS
from dev.binaries import VALKEY
from dev.ports import free_port
from dev.servers import DATABASE, REPLICA_SET, Mongo, Valkey
from models import database, item_events, job_pages, schema
from queue_manager import leases, server_calls
from queue_manager.batching import task as batched_task
from queue_manager.beat import scan_ticks
from queue_manager.core import cached_answer, redis_client
from queue_manager.core.clock import seconds
from queue_manager.core.settings import Settings, settings
from queue_manager.health import readings
from queue_manager.telemetry import counters, worker_heartbeats
from services import audit, failures, support_snooze
from services.due_documents import work as due_documents_work
from services.due_documents.work import DocumentWork
from services.message_queue import browser
from tasks import scan
from tests.real_servers import Servers
from tests.rooms import AgingClock, RecordedEvents, make_work

# The environment is set before any test module is collected, because pytest looks into every name of a module,
# and looking into a Celery task reads its configuration. The servers start when the first test needs them.
MONGO_PORT, REDIS_PORT = free_port(), free_port()
_READ_BY_LIBRARIES = ("CELERY_", "FLOWER_", "OTEL_", "SENTRY_")
for _name in list(os.environ):
    _is_setting = _name.lower() in Settings.model_fields or _name in ("NODE_ENV", "DEVSTACK")
    if (_is_setting or _name.startswith(("QM_", *_READ_BY_LIBRARIES))) and not _name.endswith("_BIN"):
        del os.environ[_name]
os.environ.update(
    PYTHONPATH=str(Path(__file__).parents[1]),  # for the processes of tests, which start in another directory
    NO_PROXY="127.0.0.1,localhost",
    no_proxy="127.0.0.1,localhost",
    MONGO_DB_URL=f"mongodb://127.0.0.1:{MONGO_PORT}/{DATABASE}?replicaSet={REPLICA_SET}",
    REDIS_URL=f"redis://127.0.0.1:{REDIS_PORT}/0",
    QM_CONVERSATIONS="true",
    MANAGED_SUBSCRIPTIONS='["seo", "sites"]',
    APP_ENV="test",
)
if _wheel := VALKEY.in_wheel():  # the same server on every machine, also where a redis-server is on PATH
    os.environ.setdefault(VALKEY.variable, str(_wheel))

# A server that is killed then still loses nothing that it has answered, and no write waits for a disk.
Valkey.fsync = "no"

# Best effort in production: here nothing is given up, however busy the machine is. Without the limits that end in an
# error, those that tests reach with a clock of their own, and those that are longer than any stall.
_PATIENT_BOUNDS: dict[tuple[Any, str], Any] = {
    # Nothing is recorded, or it is done without an answer.
    (worker_heartbeats, "HEARTBEAT_TIMEOUT"): 30.0,
    (redis_client, "BEST_EFFORT_TIMEOUT"): 30.0,
    (scan_ticks, "TICK_TIMEOUT"): 30.0,
    (item_events, "EVENT_INSERT_TIMEOUT"): seconds(30),
    (scan, "RECORD_TIMEOUT"): seconds(30),
    (audit, "AUDIT_TIMEOUT"): seconds(30),
    (due_documents_work, "FLAG_TIMEOUT"): seconds(30),
    (batched_task, "PING_TIMEOUT"): seconds(30),
    # The answer is not complete.
    (item_events, "BATCH_SEARCH_TIMEOUT"): seconds(30),
    (job_pages, "SEARCH_TIMEOUT"): 30.0,
    (failures, "LIST_TIMEOUT"): seconds(30),
    (import_module("queue_manager.operations.items"), "SEARCH_TIMEOUT"): 30.0,
    (import_module("services.message_queue.other_programs"), "ADOPT_BUDGET"): seconds(30),
    (browser, "LIST_SEARCH_BUDGET"): seconds(30),
    (browser, "LIST_SKIP_BUDGET"): seconds(30),
    (browser.MessageBrowser.count, "__kwdefaults__"): {"within": seconds(30)},
    # Somebody reads that a server does not answer.
    (server_calls, "REDIS_CALL_TIMEOUT"): 30.0,
    (unwrap(server_calls.mongodb), "__defaults__"): (30.0,),
    (readings.read, "__defaults__"): (30.0,),
    (readings.read_stats, "__defaults__"): (30.0,),
    (readings, "WRITE_TIMEOUT"): 30.0,
}
_PRODUCTION_BOUNDS = {(module, name): getattr(module, name) for module, name in _PATIENT_BOUNDS}
for (_module, _name), _bound in _PATIENT_BOUNDS.items():
    setattr(_module, _name, _bound)

# A run of the suite is repeatable; the stress tests search with new examples.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Run tests, and the processes that they start, in an empty directory, where no `.env` has other settings."""
    if not is_xdist_controller(session):  # whose processes get relative paths of tests
        stack = ExitStack()
        stack.enter_context(chdir(stack.enter_context(TemporaryDirectory())))
        session.config.add_cleanup(stack.close)


@pytest.fixture(autouse=True)
def _same_logging() -> Iterator[None]:
    """Fail the test that changes where this process logs, and not one that reads log lines after it."""
    before = _logging()
    yield
    assert _logging() == before


def _logging() -> tuple[int, list[logging.Handler]]:
    """Return the level of this process's log lines and where they go, apart from pytest's own handlers."""
    root = logging.getLogger()
    return root.level, [handler for handler in root.handlers if type(handler) is logging.StreamHandler]


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A MongoDB and a Valkey for the whole session."""
    directory = tmp_path_factory.mktemp("servers")
    # Once a minute it would delete what a test writes by a clock of its own, months ago.
    never_expire = {"ttlMonitorEnabled": "false"}
    with (
        Valkey(directory / "valkey", REDIS_PORT) as valkey,
        Mongo(directory / "mongo", MONGO_PORT, parameters=never_expire) as mongo,
        redis.Redis.from_url(valkey.url) as client,
    ):
        _close_celery()  # it is configured now, and not by some test that has changed the environment
        yield Servers(mongo=mongo, valkey=valkey, redis=client)
        _close_celery()
        database.close()


@pytest.fixture
def clean(servers: Servers) -> Servers:
    """Empty collections with their indexes, and an empty Redis."""
    catalog = _catalog()
    for name in _filled(catalog):
        database.collection(name).delete_many({})
    if servers.indexes is None or not servers.indexes <= _indexes(catalog):
        schema.migrate(SYSTEMS)
        servers.indexes = _indexes(_catalog())
    servers.redis.flushall()
    _close_celery()  # a pooled connection that an earlier test cut must not fail this one
    _close_breakers()
    _read_clock()
    return servers


def _close_breakers() -> None:
    """Have this process use Redis and MongoDB again for what it leaves out for seconds, such as after a slow call."""
    for recorder in (*counters._counters._made, *leases._recorder._made):
        recorder._try_again_at = 0.0
    for inserter in item_events._inserter._made:
        inserter._retry_at = 0.0
    readings._checked_until.clear()
    cached_answer._counts.clear()
    counters._settled.clear()


def _read_clock() -> None:
    """Read the server's clock now: a later reading may set it back by a round trip, so that what was due is not."""
    database._clock._anchor = None
    database.server_now()


def _catalog() -> dict[str, list[dict[str, Any]]]:
    """Return the database's collections and their indexes with all options, with one command for all."""
    pipeline: list[dict[str, Any]] = [
        {"$listCatalog": {}},
        {"$match": {"db": DATABASE, "type": "collection"}},
        {"$project": {"name": 1, "indexes": "$md.indexes.spec"}},
    ]
    catalog = database.database().client.admin.aggregate(pipeline)
    return {found["name"]: found["indexes"] for found in catalog}


def _indexes(catalog: dict[str, list[dict[str, Any]]]) -> frozenset[str]:
    return frozenset(f"{name} {index}" for name, indexes in catalog.items() for index in indexes)


def _filled(collections: Iterable[str]) -> list[str]:
    """Return the collections that hold documents, with one command for all."""
    first, *others = [*collections] or ["none"]
    one: dict[str, list[dict[str, Any]]] = {
        name: [{"$limit": 1}, {"$project": {"_id": name}}] for name in (first, *others)
    }
    union = [{"$unionWith": {"coll": name, "pipeline": one[name]}} for name in others]
    return [found["_id"] for found in database.collection(first).aggregate([*one[first], *union])]


@pytest.fixture
def change_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Set environment variables and read the settings again. Both are undone after the test."""

    def change(**env: str) -> None:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        settings.cache_clear()

    yield change
    monkeypatch.undo()
    settings.cache_clear()


@pytest.fixture
def own_valkey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Valkey]:
    """A Valkey that only this test's counters and heartbeats use; web processes of other tests poll the common one."""

    def forget_clients() -> None:
        settings.cache_clear()
        counters._counters.take()
        worker_heartbeats._recorder.take()

    with Valkey(tmp_path / "valkey") as valkey:
        monkeypatch.setenv("REDIS_URL", valkey.url)
        forget_clients()
        yield valkey
    monkeypatch.undo()
    forget_clients()


@pytest.fixture
def production_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up best-effort writes as early as in production."""
    for (module, name), bound in _PRODUCTION_BOUNDS.items():
        monkeypatch.setattr(module, name, bound)


@pytest.fixture
def clock() -> AgingClock:
    return AgingClock()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> RecordedEvents:
    """Record the events of support snooze instead of emitting them."""
    recorded = RecordedEvents()
    monkeypatch.setattr(support_snooze, "events", lambda: recorded)
    return recorded


@pytest.fixture
def snooze(clock: AgingClock, events: RecordedEvents) -> DocumentWork:
    return make_work(clock)


def _close_celery() -> None:
    from tasks import app

    app.pool.force_close_all(close_pool=False)
    app.pool.setup()  # closing empties the pool, and acquiring from an empty pool would block


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Report a measured figure; all are printed at the end of the run, whichever process measured them."""
    return lambda text: record_property("figure", text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    figures = [
        value
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == "figure"
    ]
    if figures:
        terminalreporter.section("measured")
        for line in figures:
            terminalreporter.line(str(line))
