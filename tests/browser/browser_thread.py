"""The one thread of a test process that drives the browser.

Playwright keeps an event loop running in the thread that uses it. Other tests of the process, which run loops of their
own, must not find it, so the browser's fixtures and the bodies of its tests all run here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_pool = ThreadPoolExecutor(1, thread_name_prefix="browser")


def in_browser_thread(act: Callable[[], T]) -> T:
    """Return what `act` returns there; raises what it raises."""
    return _pool.submit(act).result()
