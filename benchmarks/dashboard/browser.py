"""Open pages of a real browser, and when each of them showed what.

Guarantee: "on the screen" is the browser's own word, the Element Timing API: when the frame that first has the row was
presented, in steps of 4 ms. Two `requestAnimationFrame` would say when the frame after it began: at times sooner.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from benchmarks.harness import WrongResult

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
MISSING = f"a browser ({', '.join(NAMES)} on PATH): when open pages show a change was not measured"
PAGE_TIMEOUT = 60_000  # ms until a page shows its list
CLOCKS_AGREE = 5  # ms

IS_READY = """(rows) => document.querySelectorAll("#rows > tr").length === rows
  && document.getElementById("state").textContent === "Live" """
# Rows come as elements of the table's body; the text in them is an element that the browser times when told to.
WATCH = """() => {
  const shown = (globalThis.shown = {});
  const of = (id) => (shown[id] ??= { times: 0 });
  new PerformanceObserver((list) => {
    for (const { identifier, renderTime } of list.getEntries()) of(identifier).onScreen ??= renderTime;
  }).observe({ type: "element" });
  new MutationObserver((changes) => {
    for (const row of changes.flatMap(({ addedNodes }) => [...addedNodes])) {
      row.querySelector("button").setAttribute("elementtiming", row.dataset.id);
      of(row.dataset.id).times += 1;
      of(row.dataset.id).inDocument ??= performance.now();
    }
  }).observe(document.getElementById("rows"), { childList: true });
}"""
ARE_SHOWN = "(count) => Object.values(shown).filter(({ onScreen }) => onScreen).length >= count"
COLLECT = """() => {
  const skews = Array.from({ length: 20 }, () => Math.abs(Date.now() - performance.timeOrigin - performance.now()));
  return { shown, origin: performance.timeOrigin, skew: Math.min(...skews) };
}"""


@dataclass(frozen=True)
class Shown:
    """When a page showed a row, in seconds since 1970, and how often it put the row into the document."""

    in_document: float
    on_screen: float
    times: int


class Pages:
    """Open pages. Each is somebody's own, as a browser has few connections to one server."""

    def __init__(self, browser: Browser, pages: list[Page]) -> None:
        self._browser, self._pages = browser, pages
        self._session = browser.new_browser_cdp_session()

    def watch(self) -> None:
        for page in self._pages:
            page.evaluate(WATCH)

    def shown(self, count: int) -> list[dict[str, Shown]]:
        """Return what each page showed since `watch`, by the row's id, once that is `count` rows on each."""
        for page in self._pages:
            page.wait_for_function(ARE_SHOWN, arg=count, timeout=PAGE_TIMEOUT)
        return [_read(page.evaluate(COLLECT)) for page in self._pages]

    def clock(self) -> float:
        """Return the processor time in seconds that all processes of the browser have spent."""
        told = self._session.send("SystemInfo.getProcessInfo")
        return float(sum(process["cpuTime"] for process in told["processInfo"]))


def find() -> str | None:
    """Return the path of a browser on PATH, else of the one that playwright has downloaded."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def version(path: str) -> str:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30).stdout
    found = re.search(r"[\d.]+", said)
    return f"Chromium {found[0]}" if found else said.strip()


@contextmanager
def started(path: str) -> Iterator[Browser]:
    # As root it has no sandbox to offer.
    arguments = [*QUIET, "--no-sandbox"] if os.getuid() == 0 else QUIET
    with sync_playwright() as playwright:
        with playwright.chromium.launch(executable_path=path, args=arguments) as browser:
            yield browser


@contextmanager
def opened(browser: Browser, url: str, count: int, *, rows: int) -> Iterator[Pages]:
    """Open the page `count` times; each is live and shows `rows` rows."""
    with ExitStack() as stack:
        pages = [stack.enter_context(browser.new_context()).new_page() for _ in range(count)]
        for page in pages:
            page.goto(url, timeout=PAGE_TIMEOUT)
        for page in pages:
            page.wait_for_function(IS_READY, arg=rows, timeout=PAGE_TIMEOUT)
        yield Pages(browser, pages)


def opened_page(context: BrowserContext, url: str, *, rows: int) -> Page:
    """Open the page once; it is live and shows `rows` rows."""
    page = context.new_page()
    page.goto(url, timeout=PAGE_TIMEOUT)
    page.wait_for_function(IS_READY, arg=rows, timeout=PAGE_TIMEOUT)
    return page


def _read(told: Any) -> dict[str, Shown]:
    if told["skew"] > CLOCKS_AGREE:
        raise WrongResult(f"a page's clock is {told['skew']:.0f} ms from the machine's")

    def since_1970(moment: float) -> float:
        return float(told["origin"] + moment) / 1000

    return {
        id: Shown(since_1970(one["inDocument"]), since_1970(one["onScreen"]), one["times"])
        for id, one in told["shown"].items()
    }
