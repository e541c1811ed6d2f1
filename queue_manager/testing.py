"""The pytest fixture `run_system`: scan and items of a `DueDocuments` run in the test, without broker and worker.

    def test_trial_ends(run_system):
        outcome = run_system(trials, {"status": "trial", "trial_ends_at": YESTERDAY})
        assert outcome.document["status"] == "expired"

Documents are kept in a database of the test on the server of `MONGO_DB_URL`, `test_<name>_<random digits>`, which is
dropped afterwards. Redis is not used. pytest loads this module by its entry point in every project where Queue Manager
is installed, so it imports the rest when the fixture is used.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from queue_manager import DueDocuments
    from queue_manager.items import DueItem
    from services.due_documents.work import DocumentWork

MAX_RUN_ATTEMPTS = 100  # for a system that retries without a limit


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """Result of one scan and its items."""

    documents: list[dict[str, Any]]
    """All documents of the collection afterwards, in order of insertion."""
    results: list[dict[str, Any]]
    """Result per due document, oldest first: `{success: True, …}`, `{skipped: True, reason}`, or `{error}` with the
    exception of the last attempt."""

    @property
    def document(self) -> dict[str, Any]:
        """The only document of the collection."""
        (document,) = self.documents
        return document


class RunSystem(Protocol):
    def __call__(self, system: DueDocuments, *documents: Mapping[str, Any], now: datetime | None = None) -> RunOutcome:
        """Insert documents, scan once, and run each item with all its attempts, without waits between them.

        A later call continues with the documents of earlier calls. Raises the first error of `after` or `failed`.

        Args:
            system: the declaration; it need not be in QM_SYSTEMS.
            now: the time by which documents are due; `None`: the database server's.
        """


@pytest.fixture
def run_system(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunSystem]:
    """Run systems in this process, on a database that is dropped afterwards."""
    from models import database, schema
    from queue_manager import DueDocuments
    from queue_manager.core.settings import redact_url, settings

    try:
        with database.within(database.CLOCK_TIMEOUT):  # the limit of `migrate` is that of building indexes
            database.require_replica_set()
    except database.Error as error:
        if not database.is_outage(error):
            raise
        url = redact_url(settings().mongo_db_url)
        pytest.fail(
            f"run_system: MongoDB at {url} does not answer; start it (make up), or set MONGO_DB_URL", pytrace=False
        )
    # Not the process id: it is 1 in each container, and a killed process leaves its database behind.
    ours = database.client().get_database(
        f"test_{database.database().name}_{secrets.token_hex(4)}", codec_options=database.database().codec_options
    )
    monkeypatch.setattr(database, "database", lambda: ours)

    def run(system: DueDocuments, *documents: Mapping[str, Any], now: datetime | None = None) -> RunOutcome:
        if not isinstance(system, DueDocuments):
            raise TypeError(f"run_system: must be given a DueDocuments, not {system!r:.100}")
        if now is not None and now.tzinfo is None:  # such as the server's time, which functions get as `run.now`
            raise ValueError("now: must be a datetime with a time zone, such as datetime.now(UTC)")
        system.check()
        schema.migrate([system])
        collection = database.collection(system.collection)
        if documents:
            collection.insert_many([dict(one) for one in documents])
        results = _results(system, now or database.server_now())
        return RunOutcome(documents=list(collection.find(sort=[("$natural", 1)])), results=results)

    yield run
    database.client().drop_database(ours.name)


def _results(system: DueDocuments, now: datetime) -> list[dict[str, Any]]:
    from queue_manager.items import DueItem
    from queue_manager.leases import Leases
    from queue_manager.leases.state import LeaseStatus
    from services.due_documents import work_of
    from services.due_documents.work import DocumentWork

    errors: list[Exception] = []

    class NoLeases(Leases):
        """Leases are not needed in a single process."""

        def release(self, names: Any, **_: Any) -> None:
            pass

        def statuses(self, names: Any) -> list[LeaseStatus]:
            return [LeaseStatus(state="free") for _ in names]

    class Work(DocumentWork):
        def report_hook_error(self, what: str, error: Exception) -> None:
            errors.append(error)

    usual = work_of(system)
    known = {one.name: getattr(usual, one.name) for one in fields(usual)}
    work = Work(**{**known, "clock": lambda: now, "leases": NoLeases(system.name)})
    items = [
        DueItem(task_id=f"test-{number}", args=due.args, lease=due.lease)
        for number, due in enumerate(work.find_due(now))
    ]
    found: list[Any] = [None] * len(items)
    if system.batch and items:
        with suppress(Exception):  # each item then fails by itself, as in a worker
            found = work.execute_batch(items)
    results = [
        result if isinstance(result, dict) else _attempts(work, item, result)
        for item, result in zip(items, found, strict=True)
    ]
    if errors:
        raise errors[0]
    return results


def _attempts(work: DocumentWork, item: DueItem, outcome: Any) -> dict[str, Any]:
    """Return the result of the item's task after its last attempt; the first one had this outcome in the batch."""
    from queue_manager.core.errors import PermanentError, typed_reason

    for attempt in range(1, MAX_RUN_ATTEMPTS + 1):
        try:
            if attempt == 1 and isinstance(outcome, Exception):
                raise outcome
            return work.execute(*item.args, task_id=item.task_id)
        except Exception as error:
            last = error
            if isinstance(error, PermanentError) or not work.system.functions.retry.allows(attempt + 1):
                break
    work.give_up(item, error=typed_reason(last))
    return {"error": last}
