"""A user who visits a web process with a new browser context, so that tests do not affect each other."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from axe_core_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Locator, Page, Request, Response, ViewportSize

from tests.eventually import eventually

DATABASE = 6
"""Of the tests' Redis: nothing else uses it."""
STEP_TIMEOUT = 20_000  # ms for a step of the browser, on a machine with much else to do
WIDE: ViewportSize = {"width": 1280, "height": 800}
NARROW: ViewportSize = {"width": 360, "height": 740}
TABLET: ViewportSize = {"width": 820, "height": 740}
LOCAL_TIMES = "if (origin !== 'null') localStorage.setItem('times', 'local')"
"""A script of a visit that chooses local times; an empty page has no storage."""
BROKEN_OFF = r"net::ERR_"  # what a browser says of a request that was cut off
# A server that did not answer in time, which pages ask again: one that does not recover is seen by what it shows.
BUSY = r"status of 503\b.*/api/"
# What is behind an open dialog was looked at before it opened. A scheme changes colours and nothing else.
AXE = """(rules) => axe.run(document.querySelector("dialog[open]") ?? document, {
  resultTypes: ["violations"], ...(rules.length && { runOnly: rules }),
}).then(({ violations }) => violations.flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) =>
  `${id}: ${html} ${failureSummary}`)))"""
OF_COLOURS = ["color-contrast", "link-in-text-block"]


class Answered(NamedTuple):
    method: str
    path: str
    status: int


class Visit:
    """A browser context with one page. What goes wrong in it is noted, and must have been expected: see `unexpected`.

    `origin`: of the process, such as http://127.0.0.1:6002; `options` are those of a browser context.
    """

    def __init__(self, browser: Browser, origin: str, *, script: str = "", **options: Any) -> None:
        self.origin = origin
        self.context = browser.new_context(**{"viewport": WIDE, "reduced_motion": "reduce", **options})
        self.context.set_default_timeout(STEP_TIMEOUT)
        if script:
            self.context.add_init_script(script)
        self.answers: list[Answered] = []
        self._hosts = {urlsplit(origin).netloc}
        self._noise: list[str] = []
        self._expected: list[str] = [BUSY]
        self.context.on("request", self._asked)
        self.context.on("response", self._answered)
        self.context.on("console", self._said)
        self.context.on("weberror", lambda error: self._noise.append(f"error: {error.error}"))
        self.context.on("dialog", self._interrupted)
        self.page = self.context.new_page()

    def open(self, path: str) -> Page:
        self.page.goto(self.origin + path)
        return self.page

    @property
    def path(self) -> str:
        """Where the page is, with its query."""
        path: str = self.page.evaluate("location.pathname + location.search")
        return path

    # What must not happen

    def expect(self, pattern: str) -> None:
        """Let the console say what `pattern` is found in."""
        self._expected.append(pattern)

    def expect_status(self, status: int) -> None:
        """Let a request be answered so, which the browser calls an error."""
        self.expect(rf"status of {status}\b")

    def expect_host(self, origin: str) -> None:
        """Let pages of another origin be asked, too."""
        self._hosts.add(urlsplit(origin).netloc)

    @property
    def unexpected(self) -> list[str]:
        """What went wrong so far although nobody expected it; hosts asked that are not ours are among it."""
        return [line for line in self._noise if not any(re.search(pattern, line) for pattern in self._expected)]

    def close(self) -> None:
        """Raises AssertionError: something was unexpected."""
        self.context.close()
        assert not self.unexpected, self.unexpected

    def _asked(self, request: Request) -> None:
        asked = urlsplit(request.url)
        if asked.scheme in ("http", "https", "ws", "wss") and asked.netloc not in self._hosts:
            self._noise.append(f"asked another host: {request.url}")

    def _answered(self, response: Response) -> None:
        self.answers.append(Answered(response.request.method, urlsplit(response.url).path, response.status))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._noise.append(f"{message.type}: {message.text} ({message.location.get('url')})")

    def _interrupted(self, dialog: Dialog) -> None:
        self._noise.append(f"a dialog of the browser: {dialog.message}")
        dialog.dismiss()

    # What is seen

    @property
    def ids(self) -> list[str]:
        """Return the ids of the rows shown, in their order."""
        ids: list[str] = self.page.locator("#rows > tr").evaluate_all("rows => rows.map((row) => row.dataset.id)")
        return ids

    def wait_for(self, ids: list[str]) -> None:
        """Wait until just these rows are shown, in this order."""
        eventually(lambda: self.ids == ids, within=STEP_TIMEOUT / 1000)

    def row(self, id: str) -> Locator:
        return self.page.locator(f'#rows > tr[data-id="{id}"]')

    @property
    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog")

    def open_row(self, id: str) -> None:
        """Open the record of a row in a dialog."""
        self.row(id).get_by_role("link").click()

    def select(self, *ids: str) -> None:
        """Check the boxes of rows."""
        for id in ids:
            self.page.get_by_label(f"Select {id}").check()

    def press(self, name: str, within: Locator | None = None) -> None:
        """Press the button of exactly this name."""
        (within or self.page).get_by_role("button", name=name, exact=True).click()

    def is_wider_than_screen(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))

    def wrongs(self, what: str) -> list[str]:
        """Return what axe finds, and what is wider than the screen: in both schemes, at both widths."""
        self.page.wait_for_load_state()  # with its styles
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        wrongs: list[str] = []
        self.page.set_viewport_size(TABLET)
        wrongs += [f"{what} on a tablet: it is wider than the screen"] * self.is_wider_than_screen()
        for size in (NARROW, WIDE):
            self.page.set_viewport_size(size)
            found = ["it is wider than the screen"] * self.is_wider_than_screen()
            self.page.emulate_media(color_scheme="dark")
            found += self.page.evaluate(AXE, OF_COLOURS)
            self.page.emulate_media(color_scheme="light")
            found += self.page.evaluate(AXE, [])
            wrongs += [f"{what} at {size['width']}: {one}" for one in found]
        return wrongs

    def log_in(self, key: str) -> None:
        self.open("/login")
        self.page.get_by_label("API key").fill(key)
        self.press("Log in")


Visiting = Callable[..., Visit]
"""`visiting(web, **options)`: how a test begins a visit; the `visiting` fixture ends it."""
