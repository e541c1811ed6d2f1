"""The fixtures for browser tests: skipped only where allowed, errors in a page fail the test, one thread."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import executable
from tests.browser.visit import Visit
from tests.eventually import eventually
from tests.web.queue_client import Queue

pytestmark = pytest.mark.browser

NOT_DOWNLOADED: Any = SimpleNamespace(chromium=SimpleNamespace(executable_path="/nonexistent"))


@pytest.mark.parametrize("is_ci", [True, False])
def test_without_a_browser_tests_are_skipped_here_and_fail_in_ci(monkeypatch: pytest.MonkeyPatch, is_ci: bool) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CI", "true" if is_ci else "")
    with pytest.raises(BaseException, match="install Debian's chromium") as raised:
        executable(NOT_DOWNLOADED)
    assert raised.type is (pytest.fail.Exception if is_ci else pytest.skip.Exception)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("console.error('broken')", "broken"),
        ("setTimeout(() => { throw new Error('broken') })", "broken"),
        ("fetch('/api/nothing')", "status of 404"),
        ("location.assign('http://localhost:9/')", "asked another host"),
        ("setTimeout(() => alert('hello'))", "hello"),
    ],
)
def test_an_error_in_a_page_fails_its_test(browser: Browser, queue: Queue, script: str, said: str) -> None:
    visit = Visit(browser, f"http://127.0.0.1:{queue.web.port}")
    visit.open("/docs").evaluate(f"() => {{ {script} }}")
    eventually(lambda: visit.context.cookies() == [] and visit.unexpected)  # asking lets events in
    with pytest.raises(AssertionError, match=said):
        visit.close()


@pytest.fixture
def other_thread(browser: Browser) -> int:
    """Where every other test runs."""
    assert asyncio.run(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
    return threading.get_ident()


def test_the_browser_has_its_own_thread(other_thread: int) -> None:
    assert threading.current_thread().name.startswith("browser")
    assert threading.get_ident() != other_thread
