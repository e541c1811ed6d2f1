"""A real browser, and the web processes that it looks at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.any_jobs import MODULE
from tests.browser.browser_thread import in_browser_thread
from tests.browser.chromium import chromium
from tests.browser.visit import DATABASE, STEP_TIMEOUT, Visit, Visiting
from tests.real_servers import Servers
from tests.web import queue_client
from tests.web.credentials import KEYS
from tests.web.queue_client import Queue
from tests.web.web_process import Web

EVERYTHING = {
    "QUEUE_NAME": "browser",
    "QM_PROJECTS": "true",
    "QM_SITES_FIX_STALE_THUMBNAILS": "true",
    "QM_JOBS": "true",
    "QM_HOOKS": "true",
    "JOBS_IMPORTS": json.dumps([MODULE]),
}

expect.set_options(timeout=STEP_TIMEOUT)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run the body of a browser test in the browser's thread."""
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    in_browser_thread(lambda: pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with ExitStack() as stack:
        yield in_browser_thread(lambda: stack.enter_context(chromium()))
        in_browser_thread(stack.close)


@pytest.fixture
def visiting(browser: Browser) -> Iterator[Visiting]:
    """Begins visits; at the end of the test each is looked at for what went wrong unnoticed."""
    with ExitStack() as stack:

        def begin(web: Web | str, **options: Any) -> Visit:
            visit = Visit(browser, web if isinstance(web, str) else f"http://127.0.0.1:{web.port}", **options)
            stack.callback(visit.close)
            return visit

        yield begin
        in_browser_thread(stack.close)


@pytest.fixture
def queue(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """A process without keys, where everything is switched on, and its queue, which is empty."""
    return empty_queue(clean, tmp_path_factory)


@pytest.fixture
def guarded(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """The same, behind keys."""
    return empty_queue(clean, tmp_path_factory, QM_API_KEYS=KEYS)


def empty_queue(servers: Servers, directories: pytest.TempPathFactory, **env: str) -> Queue:
    return queue_client.empty_queue(servers, directories, DATABASE, **EVERYTHING, **env)


@pytest.fixture
def visit(queue: Queue, visiting: Visiting) -> Visit:
    """Somebody who looks at `queue`."""
    return in_browser_thread(lambda: visiting(queue.web))
