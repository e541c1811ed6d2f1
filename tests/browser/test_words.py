"""The words of the pages: operators read the field's terms, not those of release 0.1."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser import sample_data
from tests.browser.visit import Visit
from tests.real_servers import Servers
from tests.web.queue_client import Queue

pytestmark = pytest.mark.browser

OLD = {"Act", "Look", "Look at it", "Answers", "Away", "Oldest waits", "Took", "Noted", "Most attempts", "Due now: "}
OLD_SENTENCES = ("is not known", "Filters do not count", "the queue's own", "Nobody hands out", "of every name")
WORDS = """() => [...document.querySelectorAll("main *, dialog *")].filter((one) => one.checkVisibility())
  .flatMap((one) => [...one.childNodes]).filter((node) => node.nodeType === Node.TEXT_NODE)
  .map((node) => node.data.trim())"""


def read(page: Page, content: str, *words: str) -> None:
    """Wait for `content`; these words are on the page, and none of the old ones."""
    expect(page.locator(content).first).to_be_visible()
    texts = page.evaluate(WORDS)
    assert not OLD & {*texts}
    assert not [one for one in texts for sentence in OLD_SENTENCES if sentence in one]
    assert not {*words} - {*texts}


def test_pages_use_the_words_of_other_products(visit: Visit, queue: Queue, clean: Servers) -> None:
    sample_data.everything(queue, clean.valkey.url)
    read(visit.open("/"), "#systems article dl", "critical", "Up", "Oldest waiting")
    read(visit.open("/rooms"), "#scans > tr", "Duration", "Details")
    read(visit.open("/schedule"), "#entries > tr", "Leader")
    page = visit.open("/messages")
    read(page, "#rows > tr")
    visit.press("Add message")
    read(page, "dialog", "Max attempts", "Leave empty to use the queue default (3)")
    page = visit.open("/messages/failed")
    expect(page.locator("#rows > tr").first).to_be_visible()
    page.locator("#clear").click()
    expect(visit.dialog).to_contain_text("This ignores the filters above, and includes messages")
    page = visit.open("/jobs?state=failure")
    page.locator("#rows th a").first.click()
    visit.press("Retry now", visit.dialog)
    expect(page.locator("#toasts")).to_contain_text("Job queued to run now")
