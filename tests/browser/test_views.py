"""Saved views and chosen columns of each list: in this browser, by link, by keyboard, on a phone."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser import sample_data
from tests.browser.test_export import exported
from tests.browser.visit import Visit, Visiting
from tests.real_servers import Servers
from tests.web.queue_client import Queue

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("clean")]

HIDDEN_BY_PAGE = {
    "/rooms?state=failed": "Reason",
    "/reviews": "Due",
    "/thumbnails": "Resets in a row",
    "/messages": "Payload",
    "/messages/processing": "Consumer",
    "/messages/failed": "Reason",
    "/jobs": "Arguments",
    "/audit": "What",
    "/failures": "Last 24 hours",
}
WITHOUT_STORAGE = 'Object.defineProperty(window, "localStorage", { get() { throw new Error("refused"); } });'
LONG_NAME = "Letters to everybody who has not answered " * 3


def save(visit: Visit, name: str) -> None:
    visit.press("Save view …")
    visit.dialog.get_by_label("Name").fill(name)
    visit.press("Save", visit.dialog)
    expect(visit.dialog).to_have_count(0)


def hide(visit: Visit, *titles: str) -> None:
    visit.press("Columns …")
    for title in titles:
        visit.dialog.get_by_label(title, exact=True).uncheck()
    visit.press("Show", visit.dialog)
    expect(visit.dialog).to_have_count(0)


def manage(visit: Visit, name: str, button: str) -> None:
    visit.press(f"Change the view {name}")
    visit.press(button, visit.dialog)


def views(page: Page) -> list[str]:
    return page.locator("#views a").all_inner_texts()


def columns(page: Page) -> list[str]:
    return [title for title in page.locator("#list").get_by_role("columnheader").all_inner_texts() if title]


def letters(queue: Queue) -> list[str]:
    """Return the ids of two letters, the newer first, among other messages."""
    ids = [queue.add(type="letter", payload={"to": "ada"}) for _ in range(2)]
    queue.add(type="other")
    return ids[::-1]


@pytest.mark.smoke
def test_a_view_has_the_filter_the_order_the_tab_and_the_columns(visit: Visit, queue: Queue) -> None:
    ids = letters(queue)
    page = visit.open("/messages?filterType=letter")
    visit.wait_for(ids)
    page.get_by_role("button", name="Created").click()
    page.get_by_role("button", name="Created").click()
    visit.wait_for(ids[::-1])
    hide(visit, "Payload")
    save(visit, "Letters")
    visit.open("/messages/failed")
    expect(page.locator("#list th", has_text="Payload")).to_have_count(1)
    link = page.get_by_role("navigation", name="Saved views").get_by_role("link", name="Letters")
    link.click()
    visit.wait_for(ids[::-1])
    assert re.match(r"/messages\?filterType=letter&hide=Payload&", visit.path)
    assert columns(page) == ["Id", "Type", "Priority", "Created (by arrival)", "Attempts", "Ack timeout"]
    expect(link).to_have_attribute("aria-current", "page")
    expect(page.get_by_label("Type", exact=True)).to_have_value("letter")


def test_the_link_of_a_view_shows_others_the_same_list(visit: Visit, visiting: Visiting, queue: Queue) -> None:
    ids = letters(queue)
    visit.open("/messages?filterType=letter")
    visit.wait_for(ids)
    hide(visit, "Priority", "Ack timeout")
    save(visit, "Letters")
    link = visit.page.get_by_role("link", name="Letters").get_attribute("href") or ""
    other = visiting(queue.web)
    page = other.open(link)
    other.wait_for(ids)
    assert columns(page) == ["Id", "Type", "Payload", "Created (by arrival)", "Attempts"]
    assert views(page) == []
    other.open("/messages")  # what a link hides is not kept
    expect(page.locator("#list").get_by_role("columnheader", name="Priority")).to_be_visible()


def test_a_view_without_hidden_columns_shows_all_of_them(visit: Visit, queue: Queue) -> None:
    letters(queue)
    page = visit.open("/messages")
    save(visit, "All")
    expect(page.locator("#rows > tr")).to_have_count(3)
    hide(visit, "Payload")
    assert "Payload" not in columns(page)
    page.get_by_role("link", name="All", exact=True).click()
    expect(page.locator("#list").get_by_role("columnheader", name="Payload")).to_be_visible()


def test_a_view_is_renamed_replaced_and_deleted(visit: Visit, queue: Queue) -> None:
    letters(queue)
    page = visit.open("/messages?filterType=letter")
    save(visit, "Zebra")
    save(visit, "Ant")
    assert views(page) == ["Ant", "Zebra"]
    manage(visit, "Zebra", "Rename …")
    visit.dialog.get_by_label("Name").fill(" ")
    visit.press("Rename", visit.dialog)
    expect(visit.dialog.get_by_text("Must not be empty")).to_be_visible()
    visit.dialog.get_by_label("Name").fill("Bee")
    visit.press("Rename", visit.dialog)
    expect(page.locator("#views a")).to_have_text(["Ant", "Bee"])
    visit.open("/messages?filterType=other")
    manage(visit, "Bee", "Replace with this list")
    expect(page.get_by_role("link", name="Bee")).to_have_attribute("href", "/messages?filterType=other&hide=none")
    expect(page.get_by_role("link", name="Bee")).to_have_attribute("aria-current", "page")
    manage(visit, "Ant", "Delete")
    expect(page.locator("#views a")).to_have_text(["Bee"])
    save(visit, "Cat")
    visit.press("Undo")
    expect(page.locator("#views a")).to_have_text(["Ant", "Bee", "Cat"])
    for name in ("Ant", "Bee", "Cat"):
        manage(visit, name, "Delete")
    expect(page.locator("#views")).to_be_hidden()


def test_a_view_that_another_tab_of_the_browser_saves_is_offered_here(visit: Visit) -> None:
    first = visit.open("/jobs")
    visit.page = visit.context.new_page()
    visit.open("/jobs?state=failure")
    save(visit, "Failed")
    expect(first.get_by_role("link", name="Failed", exact=True)).to_be_visible()
    visit.open("/audit")  # which has views of its own
    expect(visit.page.locator("#views")).to_be_hidden()


def test_columns_are_kept_for_the_list_and_not_left_out_of_exports_and_prints(visit: Visit, queue: Queue) -> None:
    letters(queue)
    page = visit.open("/messages")
    hide(visit, "Payload", "Attempts")
    visit.open("/messages")
    expect(page.locator("#rows > tr")).to_have_count(3)
    assert columns(page) == ["Id", "Type", "Priority", "Created (by arrival)", "Ack timeout"]
    assert visit.path == "/messages"
    page.set_viewport_size({"width": 390, "height": 800})
    card = page.locator("#rows > tr").first
    expect(card.locator("[data-label=Type]")).to_be_visible()
    expect(card.locator("[data-label=Attempts]")).to_be_hidden()
    expect(card.locator("code")).to_be_hidden()
    page.emulate_media(media="print")
    expect(card.locator("[data-label=Attempts]")).to_be_visible()
    page.emulate_media(media="screen")
    _, text = exported(visit, "CSV, for spreadsheets")
    assert "payload" in text.splitlines()[0]
    visit.open("/messages/failed")
    visit.press("Columns …")
    expect(visit.dialog.locator("input:not(:checked)")).to_have_count(0)


def test_columns_are_chosen_with_the_keyboard(visit: Visit, queue: Queue) -> None:
    letters(queue)
    page = visit.open("/messages")
    expect(page.locator("#rows > tr")).to_have_count(3)
    chooser = page.get_by_role("button", name="Columns …")
    chooser.focus()
    page.keyboard.press("Enter")
    expect(visit.dialog.get_by_label("Type")).to_be_focused()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(page.locator("#list").get_by_role("columnheader", name="Type")).to_have_count(0)
    expect(page.locator("#rows").get_by_role("cell", name="letter", exact=True)).to_have_count(0)
    expect(chooser).to_be_focused()


def test_messages_are_live_in_a_view(visit: Visit, queue: Queue) -> None:
    visit.open("/messages?hide=Payload")
    expect(visit.page.locator("#state")).to_have_text("Live")
    visit.wait_for([queue.add()])


def test_a_browser_without_storage_keeps_the_columns_in_the_url(visiting: Visiting, queue: Queue) -> None:
    visit = visiting(queue.web, script=WITHOUT_STORAGE)
    page = visit.open("/messages")
    hide(visit, "Payload")
    assert visit.path == "/messages?hide=Payload"
    visit.press("Save view …")
    visit.dialog.get_by_label("Name").fill("Letters")
    visit.press("Save", visit.dialog)
    expect(visit.dialog).to_contain_text("This browser does not allow this site to store data")
    assert views(page) == []


def test_views_and_columns_of_every_list_have_no_violations(visit: Visit, queue: Queue, clean: Servers) -> None:
    sample_data.everything(queue, clean.valkey.url)
    wrongs = []
    for path, title in HIDDEN_BY_PAGE.items():
        page = visit.open(path)
        expect(page.locator("#rows > tr").first).to_be_visible()
        head = page.locator("#list").get_by_role("columnheader", name=title, exact=True)
        expect(head).to_have_count(1)
        hide(visit, title)
        expect(head).to_have_count(0)
        save(visit, LONG_NAME)
        wrongs += visit.wrongs(path)
        page.set_viewport_size({"width": 320, "height": 640})
        assert not visit.is_wider_than_screen(), path
        page.emulate_media(forced_colors="active")
        assert (
            page.locator("[aria-current]", has_text="Letters").evaluate(
                "one => getComputedStyle(one).textDecorationLine"
            )
            == "underline"
        )
        visit.press("Columns …")
        wrongs += visit.wrongs(f"the columns of {path}")
        page.keyboard.press("Escape")
        page.emulate_media(forced_colors="none")
    visit.press(f"Change the view {LONG_NAME.strip()}")
    wrongs += visit.wrongs("a view")
    assert not wrongs
