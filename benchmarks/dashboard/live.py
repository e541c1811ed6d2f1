"""From a change to the screen: how long after a message was added every open page shows it, and who spends the time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count

from playwright.sync_api import Browser

from benchmarks.dashboard.browser import Pages, Shown, opened, started
from benchmarks.dashboard.listeners import Listeners
from benchmarks.harness import Bench, Figure, Result, Table, Way, expect, percentile
from benchmarks.message_queue.queues import Queue, connect, messages
from benchmarks.web import Web, web
from dev.ports import LOOPBACK
from queue_manager.core.settings import settings

OPEN = (1, 10, 50)
LISTENERS = 50
CHANGES, CHANGES_QUICK = 20, 5
WAITING = 1_000
ROWS = 50  # of a page
CHANGE_DELAY = (0.4, 0.8)  # seconds between two changes, least and most
DRAWN_WITHIN = 0.03  # seconds more for each page: one change is drawn everywhere before the next
SETTLED = 2.5  # seconds after which an opened page reads nothing any more


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Milliseconds from the moment before each message was added: of every message, on every page or listener."""

    on_screen: list[float]
    in_document: list[float]
    heard: list[float]
    web_ms: float
    """Processor time for one change."""
    browser_ms: float


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one run saw, as it was seen."""

    added: dict[str, float]
    """When each message was added, in seconds since 1970."""
    pages: list[dict[str, Shown]]
    heard: dict[str, list[float]]
    web_seconds: float
    browser_seconds: float

    def seen(self) -> Seen:
        def late(id: str, at: float) -> float:
            return (at - self.added[id]) * 1e3

        return Seen(
            on_screen=[late(id, one.on_screen) for page in self.pages for id, one in page.items()],
            in_document=[late(id, one.in_document) for page in self.pages for id, one in page.items()],
            heard=[late(id, at) for id, moments in self.heard.items() for at in moments],
            web_ms=self.web_seconds / len(self.added) * 1e3,
            browser_ms=self.browser_seconds / len(self.added) * 1e3,
        )


def run(bench: Bench, *, path: str) -> Result:
    """Measure with the browser at `path`."""
    queue = Queue(settings().queue_name, connect())
    queue.client.flushall()
    queue.fill(messages(WAITING))
    changes = CHANGES_QUICK if bench.is_quick else CHANGES
    with web() as process, started(path) as browser, Listeners(process.port, LISTENERS) as listeners:
        screens = _Screens(process, browser, listeners, queue, changes)
        return bench.compare(
            "dashboard, from a change to the screen",
            f"{changes} messages added one by one to {WAITING:,} that wait, while pages show the newest {ROWS}; next "
            f"to them, {LISTENERS} plain listeners to the same events",
            [
                Way(name=f"{pages} open", run=partial(screens.run, pages), check=partial(_check, pages, changes))
                for pages in OPEN
            ],
            figures=[
                Figure(heading="screen p99, ms", of=lambda run: percentile(run.result.seen().on_screen, 99)),
                Figure(heading="screen p50, ms", of=lambda run: percentile(run.result.seen().on_screen, 50)),
                Figure(heading="screen most, ms", of=lambda run: max(run.result.seen().on_screen)),
                Figure(heading="document p99, ms", of=lambda run: percentile(run.result.seen().in_document, 99)),
                Figure(heading="listener p99, ms", of=lambda run: percentile(run.result.seen().heard, 99)),
                Figure(heading="listener p50, ms", of=lambda run: percentile(run.result.seen().heard, 50)),
                Figure(heading="web ms each", of=lambda run: run.result.seen().web_ms),
                Figure(heading="browser ms each", of=lambda run: run.result.seen().browser_ms),
            ],
            compared="times one page",
            tables=[_without_pages(screens, changes)],
            rounds=1 if bench.is_quick else 3,
            warm_up=False,
            notes=[
                "From the moment before a producer adds a message, by the machine's clock, until it is on the screen:",
                "the browser's word for when it presented the first frame with the row, in steps of 4 ms. All pages",
                "are drawn by one browser on this machine, which has to do for each what else a machine of its own",
                "does: its processor time for one change, on all pages, stands next to that of the web process, and",
                "the listeners, of the same run, say when the event was there. Without pages they say when it is at",
                "pages that others draw.",
            ],
        )


class _Screens:
    """Adds messages while pages are open. Every message of every run has its own id."""

    def __init__(self, process: Web, browser: Browser, listeners: Listeners, queue: Queue, changes: int) -> None:
        self._process, self._browser, self._listeners = process, browser, listeners
        self._queue, self._changes = queue, changes
        self._chance, self._numbers = random.Random(20), count(1)

    def run(self, pages: int) -> Trial:
        with self._opened(pages) as screens:
            spent, drawn = self._process.clock(), screens.clock()
            added = dict(self._add(pages * DRAWN_WITHIN) for _ in range(self._changes))
            seen = screens.shown(len(added))
            spent, drawn = self._process.clock() - spent, screens.clock() - drawn
        heard = {id: list(self._listeners.heard[id]) for id in added}
        return Trial(added=added, pages=seen, heard=heard, web_seconds=spent, browser_seconds=drawn)

    @contextmanager
    def _opened(self, pages: int) -> Iterator[Pages]:
        url = f"http://{LOOPBACK}:{self._process.port}/messages"
        with opened(self._browser, url, pages, rows=ROWS) as screens:
            time.sleep(SETTLED)
            screens.watch()
            yield screens

    def _add(self, longer: float) -> tuple[str, float]:
        """Add a message and wait a while, never in step with the frames. Return its id, and when it was added."""
        id = f"change-{next(self._numbers)}"
        began = time.time()
        self._queue.messages.enqueue("send_mail", {"to": "ada@example.org", "template": "welcome"}, id=id)
        time.sleep(longer + self._chance.uniform(*CHANGE_DELAY))
        return id, began


def _without_pages(screens: _Screens, changes: int) -> Table:
    trial = screens.run(0)
    _check(0, changes, trial)
    seen = trial.seen()
    figures = [percentile(seen.heard, 50), percentile(seen.heard, 99), max(seen.heard), seen.web_ms]
    return Table(
        caption=f"{LISTENERS} listeners while no page is open:",
        headings=["p50, ms", "p99, ms", "most, ms", "web ms each"],
        rows=[[f"{figure:.1f}" for figure in figures]],
    )


def _check(pages: int, changes: int, trial: Trial) -> None:
    expect("messages added", len(trial.added), changes)
    expect("pages", len(trial.pages), pages)
    for page in trial.pages:
        expect(
            "rows put into a page, each once",
            {id: one.times for id, one in page.items()},
            dict.fromkeys(trial.added, 1),
        )
    heard = {id: len(moments) for id, moments in trial.heard.items()}
    expect("events that listeners heard, each once", heard, dict.fromkeys(trial.added, LISTENERS))
