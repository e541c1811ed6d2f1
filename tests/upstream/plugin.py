"""A pytest plugin for the tests of kombu and Celery: bounds each test, and records its outcome at once.

The file `UPSTREAM_OUTCOMES` gets a JSON line for each collected test and for each report, so nothing is lost if the
process is ended.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kombu import Connection

from tests.upstream.comparison import NOT_RUN

TEST_TIMEOUT = 180  # seconds


def pytest_configure(config: pytest.Config) -> None:
    for marker in ("env", "order"):  # theirs, of plugins that are not needed here
        config.addinivalue_line("markers", marker)


def pytest_report_header() -> str:
    transport = Connection("redis://").get_transport_cls()
    return f"redis:// is {transport.__module__}.{transport.__qualname__}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = [*marker.args, *marker.kwargs.values()] if marker else []
        item.add_marker(pytest.mark.timeout(min([TEST_TIMEOUT, *seconds])), append=False)


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        _record(item.nodeid, NOT_RUN)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome != "passed":
        _record(report.nodeid, report.outcome)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _record(report.nodeid, report.outcome)


def _record(test: str, outcome: str) -> None:
    with Path(os.environ["UPSTREAM_OUTCOMES"]).open("a") as outcomes:
        outcomes.write(json.dumps([test, outcome]) + "\n")
