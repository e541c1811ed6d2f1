"""Sentry gets one event for each final failure, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import Ignore, Retry
from pymongo.errors import AutoReconnect, OperationFailure
from sentry_sdk import Client

from models.database import server_now
from models.due_documents import DueCollection
from queue_manager.core.clock import minutes
from queue_manager.core.errors import ConfigurationError, PermanentError, ScanFailed
from queue_manager.core.imports import require_extras
from queue_manager.telemetry import error_reports
from tasks import job_queues as tasks
from tasks.item import MAX_FREE_REPEATS
from tasks.support_snooze import scan_expired_snoozes, unsnooze_room
from tests.job_lab import Lab
from tests.real_servers import Servers
from tests.reported_errors import collected, exception
from tests.rooms import make_room
from tests.tasks.hand_worker import run, take

QUEUE = "support-snooze"


@pytest.fixture
def events(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    with collected(monkeypatch) as events:
        yield events


def broken(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error.with_traceback(None)

    monkeypatch.setattr(DueCollection, "apply", fail)


def test_only_the_final_failure_is_reported_and_once(
    clean: Servers, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = make_room(server_now() - minutes(1))
    broken(monkeypatch, ValueError("wrong"))
    unsnooze_room.delay(str(room))
    for _ in range(9):
        assert isinstance(run(take(clean.valkey.url, QUEUE)), Retry)
    assert events == []
    message = take(clean.valkey.url, QUEUE)
    assert isinstance(run(message), ValueError)
    (event,) = events
    assert (exception(event)["type"], exception(event)["value"]) == ("ValueError", "wrong")
    assert event["tags"] == {"where": unsnooze_room.name, "task_id": message.id, "attempts": "10"}
    assert (event["transaction"], event["environment"]) == (unsnooze_room.name, "test")


def test_a_reported_error_contains_no_values_of_variables(
    clean: Servers, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, PermanentError("wrong"))
    unsnooze_room.delay(str(make_room(server_now() - minutes(1))))
    run(take(clean.valkey.url, QUEUE))
    assert exception(events[0])["stacktrace"]["frames"][-1]["function"] == "fail"
    assert "vars" not in json.dumps(events)


def test_each_permanent_error_of_an_item_is_reported_once(clean: Servers, events: list[dict[str, Any]]) -> None:
    for _ in range(2):
        unsnooze_room.delay("nonsense")
        run(take(clean.valkey.url, QUEUE))
    assert [exception(event)["type"] for event in events] == ["PermanentError"] * 2


def test_an_outage_is_not_reported(
    clean: Servers, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, AutoReconnect("connection closed"))
    unsnooze_room.delay(str(make_room(server_now() - minutes(1))))
    results = [run(take(clean.valkey.url, QUEUE)) for _ in range(MAX_FREE_REPEATS + 10)]
    assert (type(results[0]), type(results[-1])) == (Ignore, AutoReconnect)
    assert events == []


def test_a_scan_that_keeps_failing_is_reported_once(
    clean: Servers, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("no such field")

    monkeypatch.setattr("tasks.document_tasks.fan_out", fail)
    for _ in range(3):
        with pytest.raises(Exception, match="no such field"):
            scan_expired_snoozes()
    assert [exception(event)["type"] for event in events] == ["KeyError"]


def test_a_refusal_of_mongodb_in_a_scan_is_not_reported(
    clean: Servers, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OperationFailure("not authorized", 13)

    monkeypatch.setattr("tasks.document_tasks.fan_out", fail)
    with pytest.raises(ScanFailed, match="not authorized"):
        scan_expired_snoozes()
    assert events == []


def test_a_job_failure_is_reported_only_if_it_is_not_retried(
    clean: Servers, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(server_now)
    monkeypatch.setattr(tasks, "registry", lab.registry)

    def fail(error: str, *_: Any, run: Any) -> None:
        raise PermanentError("no such address") if error == "permanent" else ValueError("try again")

    lab.works = {"mail": fail}
    lab.run("mail", "passing")
    permanent = lab.run("mail", "permanent")
    lab.run_through("mail")
    (event,) = events
    assert exception(event)["value"] == "no such address"
    assert event["tags"] == {"where": "job mail", "job": str(permanent), "attempts": "1"}


def test_an_error_of_sentry_is_a_warning(
    events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("cannot start a thread")

    monkeypatch.setattr(Client, "capture_event", fail)
    error_reports.report(ValueError("wrong"), where="a task")
    (record,) = caplog.records
    assert (record.levelname, events) == ("WARNING", [])
    assert "cannot start a thread" in record.getMessage()


def test_sentry_is_not_imported_without_its_setting() -> None:
    program = (
        "import sys\n"
        "from queue_manager.core.imports import require_extras\n"
        "from queue_manager.telemetry import error_reports\n"
        "require_extras()\n"
        "error_reports.report(ValueError(), where='x')\n"
        "assert 'sentry_sdk' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_sentry_package_is_reported_in_one_sentence(
    events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)
    with pytest.raises(ConfigurationError, match=r"^SENTRY_DSN: its packages are not installed: pip install"):
        require_extras()
