"""Every page and dialog: nothing that axe finds, in light and dark, wide and narrow; nothing wider than a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from models.database import server_now
from models.job import jobs
from tests.browser import sample_data
from tests.browser.visit import NARROW, WIDE, Visit, Visiting
from tests.foreign_jobs import foreign_job
from tests.real_servers import Servers
from tests.web.credentials import OPERATOR, UNKNOWN
from tests.web.queue_client import Queue

pytestmark = pytest.mark.browser

SIZES = """Object.fromEntries(performance.getEntriesByType("resource")
  .filter(({ name }) => /[.](js|css)$/.test(name)).map(({ name, encodedBodySize }) => [name, encodedBodySize]))"""
# By WCAG 2.5.8: less than 24 px, and so near to others that a circle of that size touches one. Links in a text may be.
TOO_SMALL = """() => {
  const all = [...document.querySelectorAll("a[href], button, input, select, textarea, summary")].filter((one) =>
    one.checkVisibility({ visibilityProperty: true }) && !one.closest(".unseen, .skip") && !one.disabled);
  const boxes = all.map((one) => one.getBoundingClientRect());
  const isSmall = ({ width, height }) => Math.min(width, height) < 23.9;
  const beyond = (point, low, high) => Math.max(low - point, point - high, 0);
  const middle = ({ left, right, top, bottom }) => [(left + right) / 2, (top + bottom) / 2];
  const isNear = (one, other) => {
    const [[x, y], [otherX, otherY]] = [middle(one), middle(other)];
    return Math.hypot(beyond(x, other.left, other.right), beyond(y, other.top, other.bottom)) < 11.9
      || (isSmall(other) && Math.hypot(x - otherX, y - otherY) < 23.9);
  };
  return all.filter((one, index) => isSmall(boxes[index]) && getComputedStyle(one).display !== "inline"
    && boxes.some((other, place) => place !== index && isNear(boxes[index], other)))
    .map((one) => one.outerHTML.slice(0, 200));
}"""
# By WCAG 1.4.12; an inline style would be refused by the page's policy.
TEXT_SPACING = """() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`p { margin-bottom: 2em !important; }
    * { line-height: 1.5 !important; letter-spacing: 0.12em !important; word-spacing: 0.16em !important; }`);
  document.adoptedStyleSheets.push(sheet);
}"""
SMALL_BUTTONS = """() => document.querySelector("main").prepend(...["a", "b"].map((text) => Object.assign(
  document.createElement("button"), { textContent: text, style: "all: unset; display: block; font-size: 8px" })))"""
PAGES = {
    "/": "#systems article",
    "/rooms?state=failed": "#rows > tr",
    "/reviews": "#rows > tr",
    "/thumbnails": "#rows > tr",
    "/messages": "#rows > tr",
    "/messages/processing": "#rows > tr",
    "/messages/failed": "#rows > tr",
    "/messages/acknowledged": "#rows > tr",
    "/messages/archived": "#rows > tr",
    "/jobs": "#rows > tr",
    "/schedule": "#entries > tr",
    "/workers": "#workers article",
    "/audit": "#rows > tr",
    "/failures": "#rows > tr",
    "/docs": ".operation",
    "/nothing": ".empty",
    "/search": ".empty",
    "/rooms/nothing": ".empty",
}


NEVER_EMPTY = {"/docs", "/nothing", "/search", "/rooms/nothing", "/messages/archived", "/messages/acknowledged"}


@pytest.mark.smoke
def test_pages_have_no_violations(visit: Visit, queue: Queue, clean: Servers) -> None:
    sample_data.everything(queue, clean.valkey.url)
    visit.expect_status(404)
    wrongs = []
    for path, content in PAGES.items():
        expect(visit.open(path).locator(content).first).to_be_visible()
        wrongs += visit.wrongs(path)
    assert not wrongs


def test_pages_fit_320_px_and_touch_targets_are_large_enough(visit: Visit, queue: Queue, clean: Servers) -> None:
    messages = sample_data.everything(queue, clean.valkey.url)
    visit.expect_status(404)
    visit.page.set_viewport_size({"width": 320, "height": 640})
    wrongs = []
    for path, content in {**PAGES, f"/messages/{messages['dead']}": ".timeline"}.items():
        page = visit.open(path)
        expect(page.locator(content).first).to_be_visible()
        wrongs += [f"{path} is wider than the screen"] * visit.is_wider_than_screen()
        wrongs += [f"{path}: {one}" for one in page.evaluate(TOO_SMALL)]
        page.evaluate(TEXT_SPACING)
        wrongs += [f"{path} with more text spacing is wider than the screen"] * visit.is_wider_than_screen()
    assert not wrongs
    page.evaluate(SMALL_BUTTONS)
    assert len(page.evaluate(TOO_SMALL)) == 2  # or the above would prove nothing


def test_long_words_are_wrapped(visit: Visit, queue: Queue, clean: Servers) -> None:
    word = "n" * 128
    sample_data.scans(error=word)
    jobs().insert_one({**foreign_job(word, "failure", server_now(), id=word), "attempts": 1})
    queue.post("/queue/pause", {"types": [word], "reason": word})
    queue.dead(type=f"{word}-2")
    queue.add(type=f"{word}-2", ackTimeout=900)
    queue.take(f"consumerId={word}")
    pages = {path: PAGES[path] for path in ("/messages/processing", "/messages/failed", "/failures", "/schedule")}
    wide = []
    for path, content in {**pages, "/jobs": "#queues > tr"}.items():
        visit.page.set_viewport_size(WIDE)
        page = visit.open(path)
        expect(page.locator(content).filter(has_text=word).first).to_be_visible()
        if path.startswith("/messages"):
            expect(page.locator("#pauses")).to_contain_text(word)
        for size in (WIDE, NARROW):
            page.set_viewport_size(size)
            wide += [f"{path} on {size['width']} px"] * visit.is_wider_than_screen()
    assert not wide


@pytest.mark.usefixtures("clean")
def test_empty_pages_have_no_violations(visit: Visit) -> None:
    wrongs = []
    for path in PAGES.keys() - NEVER_EMPTY:
        visit.open(path)
        if path not in ("/", "/schedule"):
            expect(visit.page.locator("#empty")).to_be_visible()
        wrongs += visit.wrongs(path)
    assert not wrongs


def test_the_log_in_has_no_violations(visiting: Visiting, guarded: Queue) -> None:
    visit = visiting(guarded.web)
    visit.expect_status(401)
    visit.open("/login")
    wrongs = visit.wrongs("log in")
    visit.log_in(UNKNOWN)
    expect(visit.page.get_by_role("alert")).to_be_visible()
    wrongs += visit.wrongs("wrong key")
    visit.log_in(OPERATOR)
    expect(visit.page.locator(".who")).to_be_visible()
    wrongs += visit.wrongs("logged in")
    assert not wrongs


def dialogs(visit: Visit) -> Iterator[tuple[str, Callable[[Page], None]]]:
    """Give each page with what opens a dialog there."""

    def first_row(page: Page) -> None:
        page.locator("#rows th a").first.click()

    def button(name: str) -> Callable[[Page], None]:
        return lambda _: visit.press(name)

    def button_of_first_row(page: Page) -> None:
        first_row(page)
        visit.press("Move …", visit.dialog)

    yield "/messages", first_row
    yield "/messages", button("Add message")
    yield "/messages", add_wrongly
    yield "/messages", button("Columns …")
    yield "/audit", button("Save view …")
    yield "/messages", lambda page: page.locator("#clear").click()
    yield "/messages", button_of_first_row
    yield "/messages/failed", button("Replay all that match")
    yield "/messages/failed", first_row
    yield "/rooms?state=failed", button("Retry all that match")
    yield "/jobs", first_row
    yield "/jobs", button("Run a job")
    yield "/jobs", button("Delete jobs …")
    yield "/jobs", lambda page: page.get_by_role("button", name="Pause …").first.click()
    yield "/rooms", button("Pause …")
    yield "/failures", lambda page: page.get_by_role("button", name="Replay …").first.click()
    yield "/schedule", lambda page: page.get_by_role("button", name="Last 3 runs").click()


def add_wrongly(page: Page) -> None:
    page.get_by_role("button", name="Add message").click()
    page.get_by_role("dialog").get_by_label("Payload").fill("{")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("dialog").locator("[aria-invalid]")).to_have_count(2)


def test_dialogs_have_no_violations(visit: Visit, queue: Queue, clean: Servers) -> None:
    sample_data.everything(queue, clean.valkey.url)
    wrongs = []
    for number, (path, act) in enumerate(dialogs(visit)):
        act(visit.open(path))
        expect(visit.dialog).to_be_visible()
        wrongs += visit.wrongs(f"dialog {number} of {path}")
    assert not wrongs


def test_selections_and_error_messages_have_no_violations(visit: Visit, queue: Queue) -> None:
    sample_data.messages(queue)
    visit.expect_status(422)
    page = visit.open("/messages/failed")
    page.get_by_label("Select all on this page").check()
    visit.press("Replay")
    expect(page.locator("#toasts p")).to_be_visible()
    wrongs = visit.wrongs("replayed")
    page.goto(f"{visit.origin}/messages")
    page.get_by_label("Select all on this page").check()
    page.get_by_label("Priority").fill("-1")
    expect(page.locator("#problem")).not_to_be_empty()
    wrongs += visit.wrongs("selected, and a wrong filter")
    assert not wrongs


def test_on_a_narrow_screen_each_cell_is_in_the_column_of_its_head(visit: Visit, queue: Queue, clean: Servers) -> None:
    sample_data.everything(queue, clean.valkey.url)
    visit.page.set_viewport_size(NARROW)
    for path in ("/rooms?state=failed", "/messages", "/jobs", "/schedule", "/audit", "/failures", "/workers"):
        page = visit.open(path)
        expect(page.locator(PAGES[path]).first).to_be_visible()
        labels = page.locator("td[data-label]:empty").evaluate_all(
            "cells => cells.map(cell => getComputedStyle(cell, '::before').content)"
        )
        assert {*labels} <= {"none"}  # they would be drawn over other cells
        for table in page.get_by_role("table").all():
            heads = table.get_by_role("columnheader").count()
            assert heads > 1
            for row in table.get_by_role("row").all()[1:]:
                assert row.get_by_role("rowheader").or_(row.get_by_role("cell")).count() == heads


def test_the_result_of_a_filter_is_announced(visit: Visit, queue: Queue) -> None:
    queue.add(type="mail")
    page = visit.open("/messages")
    status = page.get_by_role("status")
    expect(status.filter(has_text="1 of 1")).to_have_count(1)
    page.get_by_label("Search").fill("nothing")
    expect(status.filter(has_text="Nothing matches")).to_have_count(1)
    expect(page.locator("#announced")).to_have_attribute("aria-live", "polite")
    visit.open("/messages/failed")
    expect(status.filter(has_text="Nothing has failed")).to_have_count(1)


def test_each_button_of_a_row_has_a_name_of_its_own(visit: Visit, queue: Queue, clean: Servers) -> None:
    sample_data.everything(queue, clean.valkey.url)
    for type in ("one", "two"):
        queue.dead(type=type)
        queue.delete(f"/queue/message/{queue.add()}")
    for path in ("/rooms", "/jobs", "/schedule", "/audit", "/failures"):
        page = visit.open(path)
        expect(page.locator(PAGES.get(path, "#rows > tr")).first).to_be_visible()
        names = page.locator("tbody button").evaluate_all("all => all.map((one) => one.ariaLabel ?? one.textContent)")
        assert len(set(names)) == len(names), path


def test_dialogs_are_announced_with_their_texts(visit: Visit) -> None:
    visit.open("/messages")
    visit.press("Pause a type …")
    expect(visit.dialog).to_have_accessible_description("Its messages wait until it is resumed.")
    reason = visit.dialog.get_by_label("Reason")
    expect(reason).to_have_accessible_description("Optional; shown to other operators")
    visit.press("Pause", visit.dialog)
    expect(visit.dialog.get_by_label("Type")).to_have_accessible_description("Must not be empty")


def test_a_wrong_filter_is_described_by_its_error(visit: Visit) -> None:
    visit.expect_status(422)
    page = visit.open("/messages")
    priority = page.get_by_label("Priority")
    priority.fill("-1")
    expect(page.locator("#problem")).not_to_be_empty()
    expect(priority).to_have_accessible_description(page.locator("#problem").inner_text())
    priority.fill("1")
    expect(priority).to_have_accessible_description("")


def test_insufficient_contrast_is_detected(visit: Visit) -> None:
    """Or the tests above would prove nothing."""
    page = visit.open("/messages/archived")
    expect(page.locator("#empty")).to_be_visible()
    page.evaluate("document.querySelector('.lead').style.color = '#777'")
    page.evaluate("document.querySelector('#filter-search').labels[0].remove()")
    wrongs = visit.wrongs("page")
    assert {one.split(": ")[1] for one in wrongs} == {"color-contrast", "label"}
    assert len(wrongs) == 6


def test_no_page_loads_more_than_30_kb_of_script_and_style(visit: Visit) -> None:
    visit.expect_status(404)
    for path in PAGES:
        sizes = visit.open(path).evaluate(SIZES)
        assert sizes
        assert sum(sizes.values()) <= 30_000, sizes
