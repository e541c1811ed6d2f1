"""The browser of the tests: Chromium as the machine has it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = [
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
MISSING = f"No browser: install Debian's chromium, so that one of {', '.join(NAMES)} is on PATH"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start it. Without one, skips the test, and fails it in CI."""
    with sync_playwright() as playwright:
        path = executable(playwright)
        # As root it has no sandbox to offer.
        arguments = [*QUIET, "--no-sandbox"] if os.getuid() == 0 else QUIET
        with playwright.chromium.launch(executable_path=path, args=arguments) as browser:
            yield browser


def executable(playwright: Playwright) -> str:
    """Return the path of a browser on PATH, else of the one that playwright has downloaded."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    if Path(playwright.chromium.executable_path).exists():
        return playwright.chromium.executable_path
    if os.environ.get("CI"):
        pytest.fail(MISSING)
    pytest.skip(MISSING)
