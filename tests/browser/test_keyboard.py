"""Every action with the keyboard alone, and where the focus is afterwards."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from models import scan_run
from models.database import server_now
from models.job import JobState
from queue_manager.core.clock import seconds
from tests.any_jobs import INVOICE
from tests.browser import sample_data
from tests.browser.visit import Visit, Visiting
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.tasks.hand_worker import waiting_messages
from tests.web.credentials import OPERATOR
from tests.web.queue_client import Queue

pytestmark = pytest.mark.browser

MAX_TABS = 120  # presses of Tab until something is reached
# Something of what has the focus is in the window, and not covered.
IS_SEEN = """() => {
  const { left, right, top, bottom } = document.activeElement.getBoundingClientRect();
  return [0.1, 0.5, 0.9].some((part) => {
    const seen = document.elementFromPoint((left + right) / 2, top + part * (bottom - top));
    return seen !== null && document.activeElement.contains(seen);
  });
}"""


def tab_to(visit: Visit, wanted: Locator) -> None:
    """Press Tab until it has the focus, which must be seen."""
    expect(wanted).to_be_visible()
    for _ in range(MAX_TABS):
        visit.page.keyboard.press("Tab")
        if wanted.evaluate("one => one === document.activeElement"):
            assert wanted.evaluate("one => getComputedStyle(one).outlineStyle") != "none"
            return
    raise AssertionError(f"{wanted} is not reached by Tab")


def press(visit: Visit, *keys: str) -> None:
    for key in keys:
        visit.page.keyboard.press(key)


def test_the_first_tab_leads_past_the_navigation(visit: Visit) -> None:
    for path in ("/", "/messages", "/jobs", "/docs"):
        page = visit.open(path)
        press(visit, "Tab")
        skip = page.get_by_role("link", name="Skip to content")
        expect(skip).to_be_focused()
        expect(skip).to_be_in_viewport()
        press(visit, "Enter")
        expect(page.locator("#main")).to_be_focused()


def test_a_page_is_chosen(visit: Visit) -> None:
    page = visit.open("/")
    tab_to(visit, page.get_by_role("navigation", name="Pages").get_by_role("link", name="Messages"))
    press(visit, "Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Messages")


def test_log_in_and_log_out_work(visiting: Visiting, guarded: Queue) -> None:
    visit = visiting(guarded.web)
    page = visit.open("/docs")
    expect(page.get_by_label("API key")).to_be_focused()
    page.keyboard.type(OPERATOR)
    press(visit, "Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("API")
    tab_to(visit, page.get_by_role("button", name="Log out"))
    press(visit, "Enter")
    expect(page.get_by_label("API key")).to_be_focused()


def test_a_message_is_added_and_the_focus_returns(visit: Visit, queue: Queue) -> None:
    page = visit.open("/messages")
    add = page.get_by_role("button", name="Add message")
    tab_to(visit, add)
    press(visit, "Enter")
    expect(visit.dialog.get_by_label("Type", exact=True)).to_be_focused()
    press(visit, "Escape")
    expect(visit.dialog).to_have_count(0)
    expect(add).to_be_focused()
    press(visit, "Enter")
    page.keyboard.type("mail")
    tab_to(visit, visit.dialog.get_by_role("button", name="Add", exact=True))
    press(visit, "Enter")
    expect(visit.dialog).to_have_count(0)
    expect(add).to_be_focused()
    expect(page.locator("#rows > tr")).to_have_count(1)
    assert [one["type"] for one in queue.page("main")["messages"]] == ["mail"]


def test_a_dialog_keeps_the_focus_until_it_closes(visit: Visit, queue: Queue) -> None:
    visit.open("/messages")
    visit.press("Add message")
    for _ in range(12):
        press(visit, "Tab")
        assert visit.page.evaluate(
            "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )


def test_messages_are_found_selected_and_deleted(visit: Visit, queue: Queue) -> None:
    mail, letter = queue.add(), queue.add(type="letter")
    page = visit.open("/messages")
    expect(visit.row(mail)).to_be_visible()
    press(visit, "/")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.type("letter")
    press(visit, "Enter")
    visit.wait_for([letter])
    tab_to(visit, page.get_by_label(f"Select {letter}"))
    press(visit, "Space")
    tab_to(visit, page.get_by_role("button", name="Delete …"))
    press(visit, "Enter")
    tab_to(visit, visit.dialog.get_by_role("button", name="Delete", exact=True))
    press(visit, "Enter")
    expect(page.get_by_role("heading", name="Nothing matches")).to_be_visible()
    assert queue.ids("main") == [mail]
    expect(page.locator("#main")).to_be_focused()


def test_a_column_is_sorted_and_a_row_opened(visit: Visit, queue: Queue) -> None:
    low, high = queue.add(priority=1), queue.add(priority=2)
    page = visit.open("/messages")
    head = page.get_by_role("columnheader", name="Priority").get_by_role("button")
    tab_to(visit, head)
    press(visit, "Enter", "Enter")
    visit.wait_for([low, high])
    row = page.get_by_role("link", name=high)
    tab_to(visit, row)
    press(visit, "Enter")
    expect(visit.dialog.get_by_role("heading")).to_have_text(high)
    press(visit, "Escape")
    expect(row).to_be_focused()


@pytest.mark.parametrize("query", ["", "?filterType=job"])
def test_the_focus_stays_with_the_buttons_that_turn_pages(visit: Visit, queue: Queue, query: str) -> None:
    assert queue.post("/queue/batch", [{"type": "job"}] * 101).status == 201
    page = visit.open(f"/messages{query}")
    older, newer = page.get_by_role("button", name="Older"), page.get_by_role("button", name="Newer")
    expect(older).to_be_enabled()
    older.press("Enter")
    expect(newer).to_be_enabled()
    expect(older).to_be_focused()
    page.keyboard.press("Enter")
    expect(older).to_be_disabled()
    expect(newer).to_be_focused()


def test_a_row_that_changes_keeps_the_focus(visit: Visit, queue: Queue) -> None:
    id = queue.add()
    page = visit.open("/messages")
    row = page.get_by_role("link", name=id)
    tab_to(visit, row)
    queue.put(f"/queue/message/{id}", {"type": "letter"})
    expect(visit.row(id)).to_contain_text("letter")
    expect(row).to_be_focused()


def test_a_row_keeps_the_focus_while_others_come_and_go(visit: Visit, queue: Queue) -> None:
    first, second = queue.add(), queue.add()
    page = visit.open("/messages")
    row = page.get_by_role("link", name=first)
    tab_to(visit, row)
    third = queue.add()
    expect(visit.row(third)).to_be_visible()
    queue.delete(f"/queue/message/{second}")
    expect(visit.row(second)).to_have_count(0)
    expect(row).to_be_focused()


def test_a_dialog_gives_the_focus_back_to_its_row_or_to_the_one_that_took_its_place(visit: Visit, queue: Queue) -> None:
    last, middle, first = (queue.add() for _ in range(3))
    page = visit.open("/messages")

    def ask(id: str, verb: str) -> None:
        page.get_by_role("link", name=id).press("Enter")
        visit.dialog.get_by_role("button", name=verb).press("Enter")
        expect(visit.dialog.get_by_role("button", name="Cancel")).to_be_visible()

    ask(first, "Edit …")
    queue.put(f"/queue/message/{first}", {"type": "letter"})
    expect(visit.row(first)).to_contain_text("letter")
    press(visit, "Escape")
    expect(page.get_by_role("link", name=first)).to_be_focused()
    visit.wait_for([first, middle, last])
    for id, then in ((middle, last), (last, first)):
        ask(id, "Delete …")
        queue.delete(f"/queue/message/{id}")
        expect(visit.row(id)).to_have_count(0)
        press(visit, "Escape")
        expect(page.get_by_role("link", name=then)).to_be_focused()


def test_the_bar_of_the_selection_does_not_cover_the_focus(visit: Visit, queue: Queue) -> None:
    for _ in range(30):
        queue.add()
    page = visit.open("/messages")
    page.locator("#rows input").first.press("Space")
    expect(page.locator("#picked")).to_be_in_viewport()
    for _ in range(2 * 30 - 1):
        press(visit, "Tab")
        assert page.evaluate(IS_SEEN)
    expect(page.locator("#rows a").last).to_be_focused()


def test_a_low_window_shows_the_whole_navigation_and_records(visit: Visit, queue: Queue) -> None:
    id = queue.dead()
    page = visit.open("/messages/failed")
    expect(visit.row(id)).to_be_visible()
    page.set_viewport_size({"width": 1100, "height": 300})
    tab_to(visit, page.get_by_role("link", name="API", exact=True))
    assert page.evaluate(IS_SEEN)
    page.set_viewport_size({"width": 320, "height": 200})  # a screen of 1280 by 800, enlarged to 400 %
    visit.row(id).get_by_role("link").press("Enter")
    tab_to(visit, visit.dialog.get_by_label("Payload"))
    assert page.evaluate(IS_SEEN)


def test_a_changing_number_keeps_the_focus(visit: Visit, clean: Servers) -> None:
    make_room(server_now())
    page = visit.open("/")
    tab_to(visit, page.get_by_role("link", name="1", exact=True).first)
    make_room(server_now())
    expect(page.locator("a:focus")).to_have_text("2")


def test_the_focus_leaves_what_is_hidden(visit: Visit, queue: Queue) -> None:
    page = visit.open("/messages?search=nothing")
    clear = page.get_by_role("button", name="Clear the filter")
    clear.press("Enter")
    expect(clear).to_be_hidden()
    expect(page.locator("#main")).to_be_focused()
    for ago in range(11):
        run = {"found": 0, "claimed": 0, "enqueued": 0, "errors": 0, "duration_ms": 1}
        scan_run.record(sample_data.ROOM_SCAN, run, error=None, now=server_now() - seconds(ago))
    page = visit.open("/rooms")
    older = page.get_by_role("button", name="Show older")
    older.press("Enter")
    expect(older).to_be_hidden()
    expect(page.locator("#main")).to_be_focused()


def test_a_resumed_type_does_not_give_the_focus_to_the_button_of_another(visit: Visit, queue: Queue) -> None:
    queue.post("/queue/pause", {"types": ["letter", "mail"]})
    page = visit.open("/messages")
    resume = page.get_by_role("button", name="Resume letter")
    resume.press("Enter")
    expect(resume).to_have_count(0)
    expect(page.locator("#main")).to_be_focused()


def test_undo_keeps_the_focus_until_it_is_done(visit: Visit, queue: Queue) -> None:
    ids = [queue.add() for _ in range(2)]
    for id in ids:
        queue.post("/queue/messages/delete?queueType=main", {"messageIds": [id]})
    page = visit.open("/audit")
    row = page.locator("#rows > tr").last
    row.get_by_role("button", name="Undo").press("Enter")
    expect(page.locator("#rows > tr")).to_have_count(3)
    expect(row.get_by_role("link", name=ids[0])).to_be_focused()
    page.clock.install()
    page = visit.open("/messages")
    visit.select(ids[0])
    visit.press("Delete …")
    visit.press("Delete", visit.dialog)
    undo = page.get_by_role("button", name="Undo")
    undo.focus()
    page.clock.fast_forward(60_000)
    expect(undo).to_be_focused()
    page.keyboard.press("Enter")
    expect(undo).to_be_hidden()
    expect(page.locator("#main")).to_be_focused()
    assert queue.ids("main") == [ids[0]]


def test_a_refused_form_gives_the_focus_back_to_its_button(visit: Visit, queue: Queue) -> None:
    visit.expect_status(503)
    page = visit.open("/messages")
    visit.press("Add message")
    visit.dialog.get_by_label("Type", exact=True).fill("mail")
    page.route("**/api/queue/message", lambda route: route.fulfill(status=503, json={"message": "Try again later"}))
    add = visit.dialog.get_by_role("button", name="Add", exact=True)
    add.press("Enter")
    expect(visit.dialog).to_contain_text("Try again later")
    expect(add).to_be_focused()


def test_an_item_is_retried(visit: Visit, clean: Servers) -> None:
    stuck = sample_data.rooms()["stuck"]
    page = visit.open("/rooms")
    tab_to(visit, page.get_by_role("navigation", name="Rooms by state").get_by_role("link", name="Stuck"))
    press(visit, "Enter")
    tab_to(visit, visit.row(stuck).get_by_role("button", name="Retry"))
    press(visit, "Enter")
    expect(visit.row(stuck)).to_have_count(0)
    (message,) = waiting_messages(clean.valkey.url, "support-snooze")
    assert message.args[0] == stuck


@pytest.mark.usefixtures("clean")
def test_a_job_is_canceled(visit: Visit, queue: Queue) -> None:
    id = sample_data.make_job(queue, INVOICE, 1)
    page = visit.open("/jobs")
    row = visit.row(id).get_by_role("link")
    tab_to(visit, row)
    press(visit, "Enter")
    tab_to(visit, visit.dialog.get_by_role("button", name="Cancel the job"))
    press(visit, "Enter")
    expect(visit.row(id)).to_contain_text(JobState.CANCELED)
    expect(row).to_be_focused()
    tab_to(visit, page.get_by_role("button", name="Run a job"))


def test_a_scan_is_triggered_and_the_focus_stays(visit: Visit, clean: Servers) -> None:
    page = visit.open("/schedule")
    trigger = page.get_by_role("button", name="Trigger now").first
    tab_to(visit, trigger)
    press(visit, "Enter")
    expect(page.locator("#toasts p")).to_be_visible()
    assert len(waiting_messages(clean.valkey.url, "scans")) == 1
    expect(trigger).to_be_focused()


def test_the_description_of_a_system_is_opened(visit: Visit) -> None:
    page = visit.open("/")
    tab_to(visit, page.get_by_role("article", name="Reviews").get_by_role("link").first)
    press(visit, "Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Reviews")


def test_a_section_of_the_api_page_is_expanded(visit: Visit) -> None:
    page = visit.open("/docs")
    summary = page.locator("summary").first
    tab_to(visit, summary)
    press(visit, "Enter")
    expect(page.locator("details").first).to_have_attribute("open", "")
