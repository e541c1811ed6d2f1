"""Logging in and out in a browser, and what a viewer sees."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser import sample_data
from tests.browser.visit import Visit, Visiting
from tests.real_servers import Servers
from tests.web.credentials import OPERATOR, UNKNOWN, VIEWER
from tests.web.queue_client import Queue

pytestmark = pytest.mark.browser

PAGES = {
    "/": "#systems article",
    "/rooms?state=failed": "#rows > tr",
    "/reviews": "#rows > tr",
    "/thumbnails": "#rows > tr",
    "/messages": "#rows > tr",
    "/jobs": "#rows > tr",
    "/schedule": "#entries > tr",
    "/workers": "#workers article",
    "/docs": ".operation",
}
"""What a viewer can open, and where each page shows what there is."""
READING = {
    "Log out",
    "Times in UTC",
    "Newer",
    "Older",
    "Close",
    "Clear the filter",
    "Columns …",
    "Save view …",
    "Slowest first",
    "Export …",
    "Copy id",
    "Copy payload",
}


@pytest.fixture
def keys(guarded: Queue) -> Queue:
    """Messages behind keys; what the test adds needs one, too."""
    for type in ("mail", "letter"):
        add(guarded, type)
    return guarded


def add(keys: Queue, type: str) -> None:
    answer = keys.post("/queue/message", {"type": type, "payload": {}}, X_API_KEY=OPERATOR)
    assert answer.status == 201


def ids(keys: Queue, place: str = "main") -> list[str]:
    return [one["id"] for one in keys.get(f"/queue/{place}/messages", X_API_KEY=VIEWER).body["messages"]]


@pytest.mark.smoke
def test_people_log_in_return_to_their_page_and_log_out(visiting: Visiting, keys: Queue) -> None:
    visit = visiting(keys.web)
    page = visit.open("/messages?filterType=mail")
    assert visit.path == "/login?next=%2Fmessages%3FfilterType%3Dmail"
    field = page.get_by_label("API key")
    expect(field).to_be_focused()
    visit.expect_status(401)
    field.fill(UNKNOWN)
    visit.press("Log in")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("alert")).to_contain_text("unknown or has expired")
    field.fill(OPERATOR)
    field.press("Enter")
    expect(page.locator("#rows > tr")).to_have_count(1)
    assert visit.path == "/messages?filterType=mail"
    expect(page.locator(".who")).to_contain_text("hand operator")
    assert page.evaluate("document.cookie") == ""
    visit.expect_status(401)  # of a request that is under way when the session ends
    visit.press("Log out")
    expect(field).to_be_visible()
    visit.open("/messages")
    assert visit.path == "/login?next=%2Fmessages"


def test_an_operator_can_act(visiting: Visiting, keys: Queue) -> None:
    first, second = ids(keys)
    visit = visiting(keys.web)
    visit.log_in(OPERATOR)
    page = visit.open("/messages")
    visit.select(first)
    visit.press("Delete …")
    visit.press("Delete", visit.dialog)
    expect(page.locator("#rows > tr")).to_have_count(1)
    assert ids(keys) == [second]


def test_a_viewer_sees_everything_and_no_button_that_acts(
    clean: Servers, visiting: Visiting, queue: Queue, keys: Queue
) -> None:
    sample_data.rooms()
    sample_data.sites()
    sample_data.agencies()
    sample_data.scans()
    sample_data.jobs(queue)
    sample_data.workers(clean.valkey.url)
    visit = visiting(keys.web)
    visit.log_in(VIEWER)
    expect(visit.page.locator(".who")).to_contain_text("eye viewer")
    for path, content in PAGES.items():
        page = visit.open(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(content).first).to_be_visible()
        assert not buttons(visit), path
    page = visit.open("/messages")
    expect(page.locator("#rows > tr")).to_have_count(2)
    assert page.get_by_role("checkbox").count() == 0
    visit.open_row(ids(keys)[0])
    expect(visit.dialog).to_be_visible()
    assert not buttons(visit)


def buttons(visit: Visit) -> set[str]:
    """Return the names of the buttons that do more than show something."""
    names = visit.page.get_by_role("button").evaluate_all(
        "all => all.filter((one) => !one.matches('th *, .marks, .ranges *')).map((one) => one.textContent.trim())"
    )
    return set(names) - READING


def test_an_expired_session_keeps_the_input_of_a_form(visiting: Visiting, keys: Queue) -> None:
    visit = visiting(keys.web)
    visit.log_in(OPERATOR)
    page = visit.open("/messages")
    visit.press("Add message")
    visit.dialog.get_by_label("Type", exact=True).fill("mail")
    visit.expect_status(401)
    visit.context.clear_cookies()
    visit.press("Add", visit.dialog)
    expect(visit.dialog.get_by_role("alert").filter(has_text="The session has ended")).to_be_visible()
    other = visit.context.new_page()
    other.goto(f"{visit.origin}/login")
    expect(other.locator(".env")).to_have_text("test")
    other.get_by_label("API key").fill(OPERATOR)
    other.get_by_role("button", name="Log in").click()
    expect(other.get_by_role("heading", name="Overview")).to_be_visible()
    visit.press("Add", visit.dialog)
    expect(page.locator("#rows > tr")).to_have_count(3)


def test_an_expired_session_leads_to_the_log_in_and_back(visiting: Visiting, keys: Queue) -> None:
    visit = visiting(keys.web)
    visit.log_in(VIEWER)
    page = visit.open("/messages")
    page.get_by_role("button", name="Priority").click()
    expect(page.locator("#rows > tr")).to_have_count(2)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    visit.expect_status(401)
    visit.context.clear_cookies()
    # Not a click: if the page reads on its own first, the button is gone.
    add(keys, "mail")  # the page reads the list because of its event
    expect(page.get_by_label("API key")).to_be_visible()
    page.get_by_label("API key").fill(VIEWER)
    visit.press("Log in")
    expect(page.locator("#rows > tr")).to_have_count(3)
    assert visit.path == "/messages?sort=priority&order=desc"


def test_the_range_of_the_charts_survives_the_log_in(visiting: Visiting, keys: Queue) -> None:
    visit = visiting(keys.web)
    page = visit.open("/rooms?state=failed#7d")
    visit.expect_status(401)
    page.get_by_label("API key").fill(UNKNOWN)
    visit.press("Log in")
    expect(page.get_by_role("alert")).to_contain_text("unknown or has expired")
    page.get_by_label("API key").fill(VIEWER)
    visit.press("Log in")
    expect(page.get_by_role("button", name="7 days")).to_have_attribute("aria-pressed", "true")
    assert page.url == f"{visit.origin}/rooms?state=failed#7d"
