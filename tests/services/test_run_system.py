"""The pytest fixture `run_system`, used as in a user's own tests."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest

from dev.ports import free_port
from models import database, transaction
from queue_manager import DueDocuments, Failure, RetryPolicy, Run, System, Written
from queue_manager.core.clock import seconds
from queue_manager.core.errors import PermanentError
from queue_manager.testing import RunSystem
from tests.real_servers import Servers
from tests.rooms import T0

pytestmark = pytest.mark.usefixtures("servers")


@pytest.fixture(autouse=True)
def _without_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runs of pytest in a test load only the plugin that it names: the others take seconds to import."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


DAY = timedelta(days=1)


def declare(function: Any, **fields: Any) -> DueDocuments:
    system = DueDocuments(
        name="trial-end",
        title="Trials",
        description="Trial accounts.",
        collection="accounts",
        due="ends_at",
        every=timedelta(seconds=10),
        **fields,
    )
    system.item(retry=RetryPolicy(max_attempts=3, base=timedelta(hours=1)))(function)
    return system


def test_due_documents_are_written_and_others_are_not(run_system: RunSystem) -> None:
    trials = declare(lambda _: {"$set": {"status": "expired"}}, where={"status": "trial"})
    due, later = {"_id": "due", "ends_at": T0}, {"_id": "later", "ends_at": T0 + DAY}

    outcome = run_system(trials, *({**one, "status": "trial"} for one in (due, later)), now=T0)

    assert outcome.documents == [{**due, "status": "expired"}, {**later, "status": "trial"}]
    assert [result["success"] for result in outcome.results] == [True]


def test_a_later_call_continues_with_the_same_documents(run_system: RunSystem) -> None:
    repeating = declare(lambda one: {"$set": {"ends_at": one["ends_at"] + DAY}, "$inc": {"times": 1}})
    assert run_system(repeating, {"ends_at": T0}, now=T0).document["times"] == 1
    assert run_system(repeating, now=T0).results == []
    assert run_system(repeating, now=T0 + DAY).document["times"] == 2


def test_attempts_run_without_backoff_and_the_last_error_is_the_result(run_system: RunSystem) -> None:
    attempts: list[Any] = []
    failures: list[Failure] = []

    def fails(document: Any) -> None:
        attempts.append(document["_id"])
        raise ValueError("boom")

    failing = declare(fails, batch=False)

    @failing.failed
    def tell(failure: Failure) -> dict[str, Any]:
        failures.append(failure)
        return {"$set": {"error": failure.error}}

    outcome = run_system(failing, {"_id": 7, "ends_at": T0}, now=T0)
    assert attempts == [7, 7, 7]
    assert outcome.document["error"] == "ValueError: boom"  # as in a worker
    assert [str(result["error"]) for result in outcome.results] == ["boom"]
    assert (failures[0].id, failures[0].failures) == (7, 1)


@pytest.mark.parametrize("batch", [True, False])
def test_a_function_is_called_once_an_attempt(run_system: RunSystem, batch: bool) -> None:
    calls: list[Any] = []

    def fail_first(document: Any) -> Any:
        calls.append(document["_id"])
        if calls.count(document["_id"]) < 3:
            raise ValueError("not yet")
        return {"$unset": {"ends_at": ""}}

    outcome = run_system(declare(fail_first, batch=batch), {"_id": 1, "ends_at": T0}, {"_id": 2, "ends_at": T0}, now=T0)
    assert [result["success"] for result in outcome.results] == [True, True]
    assert sorted(calls) == [1, 1, 1, 2, 2, 2]


def test_an_update_that_leaves_it_due_is_an_error(run_system: RunSystem) -> None:
    (result,) = run_system(declare(lambda _: {"$inc": {"times": 1}}), {"ends_at": T0}, now=T0).results
    assert isinstance(result["error"], PermanentError)
    assert "left" in str(result["error"])


def test_a_function_that_takes_longer_than_a_transaction_is_an_error(
    run_system: RunSystem, elapsed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes_long(_: Any) -> dict[str, Any]:
        elapsed[0] += 2.1
        return {"$unset": {"ends_at": ""}}

    monkeypatch.setattr(transaction, "MAX_TRANSACTION", seconds(2))
    outcome = run_system(declare(takes_long), {"ends_at": T0}, now=T0)
    assert isinstance(outcome.results[0]["error"], PermanentError)
    assert "a transaction may take 2 s: put slow work into `after`" in str(outcome.results[0]["error"])


def test_invalid_system_or_time_is_refused(run_system: RunSystem) -> None:
    system = System(name="own-scan", title="T", description="D.", every=DAY, scan_task="billing.scan")
    with pytest.raises(TypeError, match="run_system: must be given a DueDocuments, not System"):
        run_system(system)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="now: must be a datetime with a time zone"):
        run_system(declare(lambda _: {"$set": {"status": "expired"}}), now=T0.replace(tzinfo=None))


def test_after_and_run_receive_the_same_arguments_as_in_a_worker(run_system: RunSystem) -> None:
    written: list[Written] = []
    system = declare(lambda document, run: {"$set": {"done_at": run.now}}, done="unset")
    system.after(written.extend)
    outcome = run_system(system, {"_id": 1, "ends_at": T0}, {"_id": 2, "ends_at": T0}, now=T0 + DAY)
    assert outcome.documents == [{"_id": one, "done_at": T0 + DAY} for one in (1, 2)]
    assert [(one.id, one.due_at, one.written_at) for one in written] == [(1, T0, T0 + DAY), (2, T0, T0 + DAY)]
    assert isinstance(Run(id="", now=T0), Run)


def test_run_system_uses_a_temporary_database_and_drops_it(servers: Servers, pytester: pytest.Pytester) -> None:
    before = database.client().list_database_names()
    pytester.makepyfile(
        """
        from datetime import UTC, datetime, timedelta
        from models import database
        from queue_manager import DueDocuments

        some = DueDocuments(name="some", title="S", description="S.", collection="some", due="at",
                            every=timedelta(seconds=1), done="unset")
        some.item()(lambda document: {})

        def test_it(run_system):
            assert run_system(some, {"at": datetime(2026, 1, 1, tzinfo=UTC)}).document.keys() == {"_id"}
            assert database.database().name.startswith("test_")
        """
    )
    pytester.runpytest_subprocess("-p", "queue_manager.testing").assert_outcomes(passed=1)
    assert database.client().list_database_names() == before


def test_a_mongodb_that_does_not_answer_fails_the_test_in_one_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"mongodb://127.0.0.1:{free_port()}/qm"  # nothing listens there
    monkeypatch.setenv("MONGO_DB_URL", f"{url}?serverSelectionTimeoutMS=200")
    pytester.makepyfile(
        """
        from datetime import timedelta
        from models import database

        database.CLOCK_TIMEOUT = timedelta(seconds=0.2)

        def test_it(run_system):
            pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "queue_manager.testing")
    result.assert_outcomes(errors=1)
    line = f"run_system: MongoDB at {url}?serverSelectionTimeoutMS=*** does not answer; start it (make up), or set "
    result.stdout.fnmatch_lines([line.replace("*", "[*]") + "MONGO_DB_URL"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_documents_of_a_killed_process_with_the_same_id_are_not_found(
    servers: Servers, request: pytest.FixtureRequest
) -> None:
    left = database.client()[f"test_{database.database().name}_{os.getpid()}"]
    left["accounts"].insert_one({"_id": "left", "ends_at": T0})
    try:
        run_system: RunSystem = request.getfixturevalue("run_system")
        outcome = run_system(declare(lambda _: {"$unset": {"ends_at": ""}}), {"_id": "new", "ends_at": T0}, now=T0)
        assert outcome.documents == [{"_id": "new"}]
    finally:
        database.client().drop_database(left.name)


def test_loading_the_pytest_plugin_imports_no_other_module_of_ours(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            ours = {"tasks", "services", "models", "beat_schedule", "queue_manager.core"}
            assert ours & set(sys.modules) == set()
            assert "celery" not in sys.modules
        """
    )
    arguments = ("-p", "queue_manager.testing")
    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=1)
