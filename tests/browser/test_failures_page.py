"""The page of failures: groups of all kinds, the way to their members, and the replay of a group."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route, expect

from tests.browser import sample_data
from tests.browser.visit import Visit, Visiting
from tests.real_servers import Servers
from tests.tasks.hand_worker import waiting_messages
from tests.web.credentials import VIEWER
from tests.web.queue_client import Queue

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("clean")]


@pytest.mark.smoke
def test_a_group_leads_to_its_members_and_is_replayed(visit: Visit, queue: Queue) -> None:
    dead = {queue.dead(payload=number) for number in range(2)}
    page = visit.open("/")
    page.get_by_role("link", name="Failures").click()
    row = page.locator("#rows > tr").filter(has_text="broken")
    expect(row.locator("[data-label=Count]")).to_have_text("2")
    expect(row.get_by_role("img")).to_have_accessible_name("2 in the last 24 hours")
    row.get_by_role("link", name="broken").click()
    expect(page.locator("#rows > tr")).to_have_count(2)
    assert visit.path == "/messages/failed?filterType=mail&search=broken"
    page.go_back()
    visit.press("Replay …: mail, broken", row)
    expect(visit.dialog.get_by_role("heading")).to_have_text("Replay 2 failures of mail?")
    visit.press("Replay", visit.dialog)
    expect(page.locator("#toasts")).to_contain_text("2 of 2 replayed")
    expect(row).to_have_count(0)
    assert set(queue.ids("main")) == dead


def test_reasons_of_the_queue_itself_are_explained(visit: Visit, queue: Queue) -> None:
    id, reason = queue.add(), "Max attempts exceeded (Stream)"
    queue.post("/queue/move", {"messages": [id], "toQueue": "dead", "errorReason": reason})
    page = visit.open("/failures")
    words = f"{reason}: not acknowledged in time"
    page.get_by_role("link", name=words, exact=True).click()
    expect(visit.row(id)).to_contain_text(words)
    visit.open_row(id)
    expect(visit.dialog.locator("dl")).to_contain_text(words)


def test_of_a_traceback_lists_show_the_exception_and_details_all_of_it(visit: Visit, queue: Queue) -> None:
    id, first = queue.add(), "Traceback (most recent call last):"
    traceback = f"{first}\n  File 'mail.py', line 1, in send\nKeyError: 'to'\n"
    queue.post("/queue/move", {"messages": [id], "toQueue": "dead", "errorReason": traceback})
    page = visit.open("/failures")
    row = page.locator("#rows > tr")
    expect(row.locator("th")).to_have_text("KeyError: <value>KeyError: 'to'")
    row.get_by_role("link", name="KeyError").click()
    expect(visit.row(id)).to_contain_text("KeyError: 'to'")
    expect(visit.row(id)).not_to_contain_text(first)
    visit.open_row(id)
    expect(visit.dialog.locator("dl")).to_contain_text(first)


def test_items_are_filtered_by_system_and_retried(visit: Visit, queue: Queue, clean: Servers) -> None:
    rooms = sample_data.rooms(reason="Boom 7")
    queue.dead()
    page = visit.open("/failures?system=support-snooze")
    row = page.locator("#rows > tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("Boom <number>")
    row.get_by_role("button", name="Retry …").click()
    visit.press("Retry", visit.dialog)
    expect(page.locator("#toasts")).to_contain_text("1 of 1 retried")
    (message,) = waiting_messages(clean.valkey.url, "support-snooze")
    assert message.args[0] == rooms["failed"]
    visit.press("Clear the filter")
    expect(row).to_contain_text("broken")


def test_a_new_failure_appears_without_reloading(visit: Visit, queue: Queue) -> None:
    page = visit.open("/failures")
    expect(page.get_by_role("heading", name="No current failures")).to_be_visible()
    queue.dead()
    expect(page.locator("#rows > tr")).to_contain_text("broken")


def test_a_list_that_was_not_read_is_announced_once(visit: Visit, queue: Queue) -> None:
    """A screen reader announces each change of the text, even to the same one."""

    def partly(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        body["lists"][0] |= {"is_complete": False, "problem": "too many"}
        route.fulfill(response=response, json=body)

    visit.page.route("**/api/failures*", partly)
    page = visit.open("/failures")
    bounds = page.locator("#bounds")
    expect(bounds).to_contain_text("too many")
    bounds.evaluate("bounds => { bounds.first = bounds.firstChild; }")
    queue.dead()
    expect(page.locator("#rows > tr")).to_have_count(1)
    assert bounds.evaluate("bounds => bounds.firstChild === bounds.first")


@pytest.mark.parametrize("width", [1280, 360])
def test_a_reason_is_shown_in_up_to_two_lines(visit: Visit, queue: Queue, width: int) -> None:
    queue.dead()
    queue.post(
        "/queue/move", {"messages": queue.ids("dead"), "toQueue": "dead", "errorReason": "the card has expired " * 3}
    )
    visit.page.set_viewport_size({"width": width, "height": 800})
    reason = visit.open("/failures").locator("#rows th .clip").first
    expect(reason).to_be_visible()
    assert reason.evaluate(
        "(clip) => clip.scrollWidth <= clip.clientWidth && clip.scrollHeight <= clip.clientHeight + 1"
    )


def test_a_viewer_has_no_buttons(guarded: Queue, visiting: Visiting) -> None:
    sample_data.rooms()
    viewer = visiting(guarded.web)
    viewer.log_in(VIEWER)
    page = viewer.open("/failures")
    expect(page.locator("#rows > tr")).to_have_count(1)
    expect(page.locator("#rows button")).to_have_count(0)
