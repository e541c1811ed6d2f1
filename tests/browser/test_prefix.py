"""The pages below a path prefix: every link, script, request and live event stays below it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser import sample_data
from tests.browser.conftest import empty_queue
from tests.browser.test_log_in import PAGES
from tests.browser.visit import Visiting
from tests.real_servers import Servers
from tests.web.credentials import KEYS, OPERATOR
from tests.web.queue_client import Queue

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("clean")]

PREFIX = "/tools/queue-manager"


@pytest.fixture
def below(queue: Queue, clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """A process that is published below a prefix, with something on every page."""
    process = empty_queue(clean, tmp_path_factory, QM_API_KEYS=KEYS, QM_WEB_PREFIX=PREFIX)
    sample_data.everything(queue, clean.valkey.url)
    return process


@pytest.mark.smoke
def test_pages_links_and_live_events_stay_below_the_prefix(visiting: Visiting, below: Queue) -> None:
    visit = visiting(f"http://127.0.0.1:{below.web.port}{PREFIX}")
    page = visit.open("/messages?filterType=letter")
    assert visit.path == f"{PREFIX}/login?next=%2Fmessages%3FfilterType%3Dletter"
    page.get_by_label("API key").fill(OPERATOR)
    visit.press("Log in")
    expect(page.locator("#rows > tr")).to_have_count(1)
    assert visit.path == f"{PREFIX}/messages?filterType=letter"

    for path, content in PAGES.items():
        page.goto(f"{visit.origin}{path}")
        expect(page.locator(content).first).to_be_visible()
        if path != "/docs":
            expect(page.locator("#state")).to_have_text("Live")
        links: list[str] = page.locator("a[href], form[action]").evaluate_all(
            "all => all.map((one) => one.getAttribute('href') ?? one.getAttribute('action'))"
        )
        assert [link for link in links if not link.startswith((f"{PREFIX}/", "#", "?"))] == [], path

    page = visit.open("/")
    page.get_by_role("region", name="Needs attention").get_by_role("link", name="Rooms").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Rooms")
    page.get_by_role("link", name="Queue Manager").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    visit.expect_status(401)  # of a request that is under way when the session ends
    visit.press("Log out")
    expect(page.get_by_label("API key")).to_be_visible()
    assert [answer.path for answer in visit.answers if not answer.path.startswith(f"{PREFIX}/")] == []


def test_a_session_that_ends_leads_to_the_log_in_below_the_prefix(
    visiting: Visiting, below: Queue, queue: Queue
) -> None:
    visit = visiting(f"http://127.0.0.1:{below.web.port}{PREFIX}")
    visit.log_in(OPERATOR)
    page = visit.open("/messages")
    expect(page.locator("#state")).to_have_text("Live")
    visit.expect_status(401)
    visit.context.clear_cookies()
    queue.post("/queue/message", {"type": "more"})  # makes the page ask for its rows
    page.wait_for_url(f"{visit.origin}/login?next=**")
    page.get_by_label("API key").fill(OPERATOR)
    visit.press("Log in")
    expect(page.get_by_role("heading", level=1)).to_have_text("Messages")
