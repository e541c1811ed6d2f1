"""The search for any id, and the page of one item: its state with the reason, and its timeline."""

from __future__ import annotations

from itertools import pairwise

import pytest
from playwright.sync_api import Page, Route, expect

from models import support_room
from models.database import collection, server_now
from queue_manager.core.clock import hours, minutes
from tests.browser import sample_data
from tests.browser.visit import Visit, Visiting
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import execute, make_room, make_work, scan
from tests.tasks.hand_worker import waiting_messages
from tests.web.credentials import VIEWER
from tests.web.queue_client import Queue

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("clean")]

BUSY = """globalThis.EventSource = class extends EventSource {
  constructor(...parameters) {
    super(...parameters);
    setInterval(() => this.dispatchEvent(new MessageEvent("overview", { data: "{}" })), 50);
  }
}"""
READINGS = """performance.getEntriesByType("resource")
  .filter(({ name }) => name.includes("/api/search")).map(({ startTime }) => startTime)"""


@pytest.mark.parametrize("keys", ["Control+k", "Meta+k", "/"])
def test_any_id_is_found_from_any_page_by_keyboard(visit: Visit, keys: str) -> None:
    room = make_room(server_now() + hours(3))
    page = visit.open("/schedule")
    expect(page.locator("#entries > tr").first).to_be_visible()
    page.keyboard.press(keys)
    expect(page.get_by_label("Find any id")).to_be_focused()
    page.keyboard.type(str(room))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Room {room}")
    expect(page.get_by_role("region", name=f"room {room}")).to_contain_text("Snoozed until ")
    assert visit.path == f"/rooms/{room}"
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("Schedule")


def test_slash_stays_with_the_search_of_a_list(visit: Visit) -> None:
    page = visit.open("/rooms")
    expect(page.locator("#empty")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.press("Control+Shift+k")  # a key of browsers, such as of the console of Firefox
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.press("Control+k")
    expect(page.get_by_label("Find any id")).to_be_focused()


def test_keys_work_while_a_checkbox_has_the_focus(visit: Visit, queue: Queue) -> None:
    id = queue.add()
    page = visit.open("/messages")
    visit.select(id)
    expect(page.get_by_label(f"Select {id}")).to_be_focused()
    page.keyboard.press("?")
    expect(visit.dialog).to_contain_text("Display and keys")
    page.keyboard.press("Escape")
    expect(page.get_by_label(f"Select {id}")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Search payload, id, error")).to_be_focused()


def test_slash_finds_any_id_where_the_list_has_no_search(visit: Visit) -> None:
    page = visit.open("/audit")
    expect(page.locator("#empty")).to_be_visible()
    page.keyboard.press("?")
    expect(visit.dialog).to_contain_text("Find any idCtrl K or ⌘ K or /")
    expect(visit.dialog).not_to_contain_text("Search this list")
    page.keyboard.press("Escape")
    expect(visit.dialog).to_have_count(0)  # it closes after the key press returns
    page.keyboard.press("/")
    expect(page.get_by_label("Find any id")).to_be_focused()


def test_an_ambiguous_id_lists_all_matches(visit: Visit) -> None:
    for id in (5, "5"):
        make_room(server_now() + hours(1), _id=id)
    page = visit.open("/search?id=5")
    expect(page.locator("#found").get_by_role("link")).to_have_count(2)
    assert not visit.wrongs("search")
    page.get_by_role("link", name='room "5"').click()
    expect(page.get_by_role("heading", level=1)).to_have_text('Room "5"')


def test_an_unknown_id_is_reported(visit: Visit) -> None:
    page = visit.open("/search?id=nothing")
    expect(page.get_by_role("heading", name="No results")).to_be_visible()
    expect(page.get_by_label("Find any id")).to_have_value("nothing")
    page = visit.open("/rooms/nothing")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    assert not visit.wrongs("nothing")
    page.get_by_role("link", name="Search everything for this id").click()
    expect(page.get_by_role("heading", name="No results")).to_be_visible()
    assert visit.path == "/search?id=nothing"
    page.go_back()
    page.get_by_role("link", name="All rooms").click()
    expect(page.get_by_role("heading", name="Nothing is due")).to_be_visible()
    assert visit.path == "/rooms"


def test_the_page_of_a_room_is_updated_live(visit: Visit) -> None:
    work = make_work(server_now)
    room = make_room(server_now() - minutes(1))
    page = visit.open(f"/rooms/{room}")
    answer = page.get_by_role("region", name=f"room {room}")
    expect(answer).to_contain_text("not dispatched yet")
    page.evaluate("globalThis.isSamePage = true")
    (item,) = scan(work)
    expect(answer).to_contain_text("waiting in the queue")
    expect(page.get_by_role("listitem").first).to_contain_text("Dispatched")
    expect(page.get_by_role("listitem").first).to_contain_text(item.task_id)
    execute(work, item)
    expect(answer).to_contain_text("Open since")
    assert page.evaluate("isSamePage")


def test_an_explanation_is_read_again_at_most_every_three_seconds_and_never_while_hidden(
    visiting: Visiting, queue: Queue
) -> None:
    visit = visiting(queue.web, script=BUSY)
    requests: list[str] = []
    visit.page.on("request", lambda request: requests.append(request.url) if "/api/search" in request.url else None)
    page = visit.open(f"/rooms/{make_room(server_now() + hours(1))}")
    eventually(lambda: len(page.evaluate(READINGS)) >= 3)
    began = page.evaluate(READINGS)
    assert all(later - earlier > 2990 for earlier, later in pairwise(began)), began
    hide(page, is_hidden=True)
    before = len(requests)
    page.wait_for_timeout(4000)
    assert len(requests) == before
    hide(page, is_hidden=False)
    eventually(lambda: page.evaluate("1") and len(requests) > before)


def test_an_explanation_that_is_read_slowly_is_read_again_only_after_ten_seconds(
    visiting: Visiting, queue: Queue
) -> None:
    held: list[Route] = []
    visit, room = visiting(queue.web, script=BUSY), make_room(server_now() + hours(1), account_id="a1")
    visit.page.clock.install()
    page = visit.open(f"/rooms/{room}")
    expect(page.get_by_role("region", name=f"room {room}")).to_contain_text("a1")
    page.route("**/api/search?*", lambda route: held.append(route))
    page.clock.pause_at(server_now() + hours(1))  # the time of the page is ours, and its rests are over
    eventually(lambda: page.evaluate("1") and held)
    support_room.rooms().update_one({"_id": room}, {"$set": {"account_id": "a2"}})
    page.clock.run_for(500)
    held.pop().continue_()
    expect(page.get_by_role("region", name=f"room {room}")).to_contain_text("a2")
    page.clock.run_for(9_900)
    page.evaluate("1")  # a call to the browser lets requests be noted
    assert not held
    page.clock.run_for(200)
    eventually(lambda: page.evaluate("1") and held)


def hide(page: Page, *, is_hidden: bool) -> None:
    """Let the page believe that another tab covers it, or no longer does."""
    page.evaluate(
        """(isHidden) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }""",
        is_hidden,
    )


def test_the_document_is_one_press_away(visit: Visit) -> None:
    room = make_room(server_now() + hours(1), account_id=None)
    page = visit.open(f"/rooms/{room}")
    expect(page.get_by_role("heading", name="Why it is in this state")).to_be_visible()
    expect(page.get_by_text("snooze_time")).to_have_count(0)
    page.get_by_text("Show the document").click()
    expect(page.get_by_label("Document")).to_contain_text("snooze_time")
    assert not visit.wrongs("document")


def test_a_failed_room_is_opened_from_the_list_and_retried(visit: Visit, clean: Servers) -> None:
    room = sample_data.rooms()["failed"]
    page = visit.open("/rooms?state=failed")
    visit.row(room).get_by_role("link", name=room).click()
    answer = page.get_by_role("region", name=f"room {room}")
    expect(answer).to_contain_text("Last error: Boom")
    visit.press("Retry")
    expect(page.locator("#toasts")).to_contain_text(f"Retry queued for room {room}")
    expect(answer).to_contain_text("queued")
    assert [message.args[0] for message in waiting_messages(clean.valkey.url, "support-snooze")] == [room]
    page.get_by_role("link", name="All rooms").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Rooms")


def test_a_viewer_sees_the_answer_and_no_button(visiting: Visiting, guarded: Queue) -> None:
    room = sample_data.rooms()["failed"]
    visit = visiting(guarded.web)
    visit.log_in(VIEWER)
    page = visit.open(f"/rooms/{room}")
    expect(page.get_by_role("region", name=f"room {room}")).to_contain_text("Last error: Boom")
    expect(page.get_by_role("button", name="Retry")).to_have_count(0)


def test_a_long_history_fits_a_phone(visit: Visit) -> None:
    work = make_work(server_now)
    room = make_room(server_now() - minutes(1), account_id="an account " * 20)
    (item,) = scan(work)
    for attempt in range(1, 6):
        work.record_attempt(item, "retried", error=sample_data.REASON, attempt=attempt)
    eventually(lambda: collection("qm_item_events").count_documents({}) == 6)
    page = visit.open(f"/rooms/{room}")
    expect(page.get_by_role("listitem").filter(has_text="Attempt 5 failed")).to_be_visible()
    page.set_viewport_size({"width": 320, "height": 640})
    assert not visit.is_wider_than_screen()
    assert not visit.wrongs("history")


def test_the_document_shows_all_digits_and_is_replaced_only_if_it_has_changed(visit: Visit, queue: Queue) -> None:
    id = queue.add(payload={"exact": 9007199254740993})
    page = visit.open(f"/messages/{id}")
    page.get_by_text("Show the document").click()
    document = page.get_by_label("Document")
    expect(document).to_contain_text("9007199254740993")
    node = document.evaluate_handle("(element) => element.firstChild")
    with page.expect_response(f"**/api/queue/message/{id}"):
        queue.add()
    page.evaluate("new Promise((resolve) => setTimeout(resolve))")
    assert node.evaluate("(text) => text.isConnected")
