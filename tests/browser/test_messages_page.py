"""The pages of messages: what they show, and the effect of each action, checked by the API."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.conftest import EVERYTHING
from tests.browser.visit import BROKEN_OFF, NARROW, Visit
from tests.eventually import eventually
from tests.web.queue_client import Queue

pytestmark = pytest.mark.browser

TABS = {
    "/messages": "Waiting",
    "/messages/processing": "Processing",
    "/messages/failed": "Failed",
    "/messages/acknowledged": "Acknowledged",
    "/messages/archived": "Archived",
}
LINES = "cell => { const range = new Range(); range.selectNodeContents(cell); return range.getClientRects().length; }"


def message(queue: Queue, place: str, id: str) -> Any:
    return next(message for message in queue.page(place)["messages"] if message["id"] == id)


def toast(page: Page) -> Locator:
    return page.locator("#toasts")


# Where messages are


def test_each_tab_shows_its_messages_and_all_counts(visit: Visit, queue: Queue) -> None:
    places = dict(zip(TABS, ("main", "processing", "dead", "acknowledged", "archived"), strict=True))
    failed = queue.dead()
    acknowledged, archived = queue.add(), queue.add()
    taken = queue.take()
    queue.post("/queue/ack", {"id": taken["id"], "lock_token": taken["lock_token"]})
    queue.post("/queue/move", {"messages": [archived], "toQueue": "archived"})
    queue.add(ackTimeout=600)
    processing = queue.take()["id"]
    ids = [queue.add(), processing, failed, acknowledged, archived]
    page = visit.open("/messages")
    for (path, title), id in zip(TABS.items(), ids, strict=True):
        page.get_by_role("navigation", name="Messages by state").get_by_role("link", name=title).click()
        visit.wait_for([id])
        assert visit.path == path
        for place in places.values():
            expect(page.locator(f'[data-count="{place}"]')).to_have_text("1")


def test_empty_lists_explain_what_to_do_next(visit: Visit) -> None:
    for path in TABS:
        expect(visit.open(path).locator("#empty")).to_be_visible()
    visit.open("/messages?search=nothing")
    expect(visit.page.get_by_role("heading", name="Nothing matches")).to_be_visible()
    visit.press("Clear the filter")
    expect(visit.page.get_by_role("heading", name="Nothing is waiting")).to_be_visible()


def test_a_row_expands_to_all_details(visit: Visit, queue: Queue) -> None:
    payload = {"to": ["ada"], "n": 1, "reversed": "\u202etxt"}
    id = queue.dead(type="mail", payload=payload)
    visit.open("/messages/failed")
    visit.open_row(id)
    expect(visit.dialog.get_by_role("heading")).to_have_text(id)
    shown = visit.dialog.get_by_label("Payload").inner_text()
    assert json.loads(shown) == payload
    assert "\u202e" not in shown  # but its escape
    facts = visit.dialog.locator("dl")
    for words in ("StateFailed", "Typemail", "Attempts1 of 1", "Ack timeout30 s", " UTC", "Reasonbroken"):
        expect(facts).to_contain_text(words)
    expect(facts).not_to_contain_text("_")  # no names of fields
    visit.dialog.get_by_role("link", name="What happened to it").click()
    expect(visit.page.locator(".timeline")).to_contain_text("broken")
    assert visit.path == f"/messages/{id}"


def test_a_long_reason_keeps_its_lines_and_leaves_the_buttons_in_sight(visit: Visit, queue: Queue) -> None:
    reason = "\n".join(["Traceback (most recent call last):", *["  in handle"] * 100, "KeyError: 'to'"])
    id = queue.dead()
    queue.post("/queue/move", {"messages": [id], "fromQueue": "dead", "toQueue": "main"})
    queue.post("/queue/move", {"messages": [id], "fromQueue": "main", "toQueue": "dead", "errorReason": reason})
    visit.page.set_viewport_size(NARROW)
    page = visit.open("/messages/failed")
    visit.open_row(id)
    shown = visit.dialog.get_by_role("group", name="Reason")
    expect(shown).to_be_in_viewport()
    assert shown.inner_text() == reason
    expect(visit.dialog.get_by_role("button", name="Replay")).to_be_in_viewport(ratio=1)
    visit.dialog.get_by_role("link", name="What happened to it").click()
    answer = page.get_by_role("region", name=f"message {id}")
    expect(answer).to_contain_text("Reason: KeyError: 'to'.")
    expect(answer).not_to_contain_text("Traceback")
    expect(page.locator(".timeline").get_by_role("group", name="Error")).to_have_text(reason)


def test_the_id_of_a_row_is_a_link_to_the_page_of_the_message(visit: Visit, queue: Queue) -> None:
    id = queue.add(type="mail")
    page = visit.open("/messages")
    with page.context.expect_page() as opened:
        visit.row(id).get_by_role("link").click(modifiers=["ControlOrMeta"])
    expect(opened.value.get_by_role("heading", level=1)).to_have_text(f"Message {id}")
    expect(visit.dialog).to_have_count(0)
    visit.open_row(id)
    expect(visit.dialog.get_by_role("heading")).to_have_text(id)
    assert visit.path == "/messages"


def test_open_message_follows_its_state(visit: Visit, queue: Queue) -> None:
    id = queue.add(payload={"n": 12345678901234567890})
    visit.open("/messages")
    visit.open_row(id)
    expect(visit.dialog.get_by_role("button")).to_contain_text(["Delete …", "Move …", "Edit …"])
    visit.dialog.get_by_role("button", name="Edit …").focus()
    taken = queue.take()
    expect(visit.dialog.locator("dl")).to_contain_text("StateProcessing")
    expect(visit.dialog.locator("menu button")).to_have_text(["Close"])
    assert visit.dialog.evaluate("dialog => dialog.contains(document.activeElement)")
    queue.post(f"/queue/message/{id}/nack", {"lock_token": taken["lock_token"], "errorReason": "broken"})
    expect(visit.dialog.locator("menu button")).to_have_text(["Close", "Delete …", "Move …", "Edit …"])
    expect(visit.dialog.locator("dl")).to_contain_text("Reasonbroken")
    expect(visit.dialog.get_by_label("Payload")).to_contain_text("12345678901234567890")
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    queue.put(f"/queue/message/{id}", {"payload": {"n": 2}, "priority": 7})
    expect(visit.dialog.get_by_label("Payload")).to_have_text('{\n  "n": 2\n}')
    visit.press("Copy payload", visit.dialog)
    expect(visit.dialog).to_contain_text("Copied the payload")
    assert visit.page.evaluate("navigator.clipboard.readText()") == '{\n  "n": 2\n}'
    visit.press("Edit …", visit.dialog)
    expect(visit.dialog.get_by_label("Payload, as JSON")).to_have_value('{\n  "n": 2\n}')
    expect(visit.dialog.get_by_label("Priority", exact=True)).to_have_value("7")
    visit.press("Cancel", visit.dialog)
    visit.open_row(id)
    visit.expect_status(404)
    queue.delete(f"/queue/message/{id}?queueType=main")
    expect(visit.dialog).to_contain_text("It no longer exists.")


# Adding and editing


@pytest.mark.smoke
def test_a_message_is_added(visit: Visit, queue: Queue) -> None:
    page = visit.open("/messages")
    visit.press("Add message")
    page.get_by_label("Type").last.fill("mail")
    page.get_by_label("Payload, as JSON").fill('{"to": "ada", "big": 12345678901234567890}')
    visit.dialog.get_by_label("Priority").fill("4")
    page.get_by_label("Ack timeout, in seconds").fill("12.5")
    page.get_by_label("Max attempts").fill("7")
    visit.press("Add", visit.dialog)
    expect(visit.dialog).to_have_count(0)
    (added,) = queue.page("main")["messages"]
    expect(toast(page)).to_contain_text(added["id"])
    visit.wait_for([added["id"]])
    said = (
        added["type"],
        added["payload"],
        added["priority"],
        added["custom_ack_timeout"],
        added["custom_max_attempts"],
    )
    assert said == ("mail", {"to": "ada", "big": 12345678901234567890}, 4, 12.5, 7)
    expect(visit.row(added["id"])).to_contain_text("12345678901234567890")


def test_a_message_is_added_once_if_the_answer_is_lost(visit: Visit, queue: Queue) -> None:
    def lose_answer(route: Route) -> None:
        assert route.fetch().status == 201
        route.abort()

    visit.expect(BROKEN_OFF)
    page = visit.open("/messages")
    page.route("**/api/queue/message", lose_answer, times=1)
    visit.press("Add message")
    visit.dialog.get_by_label("Type", exact=True).fill("mail")
    visit.press("Add", visit.dialog)
    expect(visit.dialog.get_by_role("alert").filter(has_text="the outcome of the request is unknown")).to_be_visible()
    visit.press("Add", visit.dialog)
    expect(visit.dialog).to_have_count(0)
    (id,) = queue.ids("main")
    expect(toast(page)).to_have_text(f"Added {id}")

    visit.press("Add message")  # the same again, on purpose
    visit.dialog.get_by_label("Type", exact=True).fill("mail")
    visit.press("Add", visit.dialog)
    expect(visit.dialog).to_have_count(0)
    assert len(queue.ids("main")) == 2


def test_all_errors_are_shown_together_next_to_their_fields(visit: Visit, queue: Queue) -> None:
    visit.open("/messages")
    visit.press("Add message")
    wrong = (
        ("Type", "", "Must not be empty", "mail"),
        ("Payload, as JSON", "{", "Must be JSON", "[]"),
        ("Priority", "99", "Must be a whole number from 0 to 9", "9"),
        ("Ack timeout, in seconds", "soon", "Must be a number from 0.001 to 604800", ""),
        ("Max attempts", "0", "Must be a whole number from 1 to 10000", ""),
    )
    fields = {label: visit.dialog.get_by_label(label, exact=True) for label, *_ in wrong}
    for label, value, _, _ in wrong:
        fields[label].fill(value)
    visit.press("Add", visit.dialog)
    for label, _, problem, _ in wrong:
        expect(fields[label]).to_have_attribute("aria-invalid", "true")
        expect(fields[label]).to_have_accessible_description(re.compile(f"^{re.escape(problem)}"))
    expect(fields["Type"]).to_be_focused()
    assert not [one for one in visit.answers if one.method == "POST"]
    for label, _, _, right in wrong:
        fields[label].fill(right)
    visit.press("Add", visit.dialog)
    expect(visit.dialog).to_have_count(0)
    assert len(queue.ids("main")) == 1


def test_spaces_around_a_pasted_type_are_left_out(visit: Visit, queue: Queue) -> None:
    page = visit.open("/messages")
    visit.press("Pause a type …")
    visit.dialog.get_by_label("Type").fill(" mail ")
    visit.press("Pause", visit.dialog)
    expect(toast(page)).to_have_text("Paused mail")
    assert [*queue.get("/queue/status").body["pauses"]] == ["mail"]
    visit.press("Add message")
    visit.dialog.get_by_label("Type").fill("mail ")
    visit.dialog.get_by_label("Payload, as JSON").fill('" text "')
    visit.press("Add", visit.dialog)
    expect(visit.dialog).to_have_count(0)
    (added,) = queue.page("main")["messages"]
    assert (added["type"], added["payload"]) == ("mail", " text ")


def test_an_edit_keeps_spaces_around_a_type_that_was_not_edited(visit: Visit, queue: Queue) -> None:
    id = queue.add(type="mail ")
    visit.open("/messages")
    visit.open_row(id)
    visit.press("Edit …")
    visit.dialog.get_by_label("Priority", exact=True).fill(" 7 ")
    visit.press("Save")
    expect(visit.dialog).to_have_count(0)
    changed = message(queue, "main", id)
    assert (changed["type"], changed["priority"]) == ("mail ", 7)


def test_server_side_errors_are_shown_next_to_their_field(visit: Visit, queue: Queue) -> None:
    visit.open("/messages")
    visit.press("Add message")
    visit.expect_status(422)
    field = visit.dialog.get_by_label("Type", exact=True)
    field.fill("x" * 300)
    visit.press("Add", visit.dialog)
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_be_focused()
    expect(visit.dialog.locator("#field-type-problem")).to_contain_text("1 to 256 bytes")
    assert visit.dialog.locator("[aria-invalid]").count() == 1


def test_an_option_of_a_message_is_removed(visit: Visit, queue: Queue) -> None:
    id = queue.add(ackTimeout=60)
    visit.open("/messages")
    visit.open_row(id)
    visit.press("Edit …")
    visit.dialog.get_by_label("Ack timeout, in seconds", exact=True).fill("")
    visit.press("Save")
    expect(visit.dialog).to_have_count(0)
    assert "custom_ack_timeout" not in message(queue, "main", id)


def test_an_edit_changes_only_edited_fields(visit: Visit, queue: Queue) -> None:
    big = {"exact": 12345678901234567890}
    id = queue.add(payload=big, priority=2, ackTimeout=60)
    visit.open("/messages")
    visit.open_row(id)
    visit.press("Edit …")
    visit.dialog.get_by_label("Type", exact=True).fill("letter")
    visit.press("Save")
    expect(visit.row(id)).to_contain_text("letter")
    changed = message(queue, "main", id)
    assert (changed["type"], changed["payload"], changed["priority"], changed["custom_ack_timeout"]) == (
        "letter",
        big,
        2,
        60,
    )


def test_an_edit_keeps_concurrent_changes_of_others(visit: Visit, queue: Queue) -> None:
    id = queue.add(payload={"v": 1})
    visit.open("/messages")
    visit.open_row(id)
    visit.press("Edit …")
    queue.put(f"/queue/message/{id}", {"payload": {"v": 2}})
    visit.dialog.get_by_label("Priority", exact=True).fill("7")
    visit.press("Save")
    expect(visit.row(id)).to_contain_text("7")
    assert message(queue, "main", id)["payload"] == {"v": 2}


def test_an_edit_of_a_message_taken_meanwhile_is_refused_with_an_explanation(visit: Visit, queue: Queue) -> None:
    id = queue.add()
    visit.open("/messages")
    visit.open_row(id)
    visit.press("Edit …")
    visit.dialog.get_by_label("Priority", exact=True).fill("7")
    assert queue.take()["id"] == id
    visit.expect_status(404)
    visit.expect_status(409)
    visit.press("Save")
    expect(visit.dialog.get_by_role("alert").filter(has_text=id)).to_be_visible()
    visit.press("Cancel")
    expect(visit.dialog).to_have_count(0)


# Moving and deleting


def test_a_type_is_paused_with_a_reason_and_resumed(visit: Visit, queue: Queue) -> None:
    mail, letter = queue.add(type="mail"), queue.add(type="letter")
    page = visit.open("/messages")
    visit.wait_for([letter, mail])
    visit.press("Pause a type …")
    visit.dialog.get_by_label("Type").fill("mail")
    visit.dialog.get_by_label("Reason").fill("the mail server is down")
    assert visit.wrongs("the dialog") == []
    visit.press("Pause", visit.dialog)
    expect(toast(page)).to_contain_text("Paused mail")
    expect(page.locator("#pauses")).to_contain_text("the mail server is down")
    assert visit.wrongs("a pause") == []
    assert queue.take()["id"] == letter
    assert queue.get("/queue/message").status == 404
    visit.press("Resume mail")
    expect(page.locator("#pauses > *")).to_have_count(0)
    expect(page.locator("#toasts")).to_contain_text("Resumed mail")
    assert queue.take()["id"] == mail


def test_a_pause_by_another_operator_keeps_the_focus_on_the_button(visit: Visit, queue: Queue) -> None:
    queue.post("/queue/pause", {"types": ["mail"]})
    page = visit.open("/messages")
    resume = page.get_by_role("button", name="Resume mail")
    resume.focus()
    for action, count in (("pause", 2), ("resume", 1)):
        queue.post(f"/queue/{action}", {"types": ["letter"]})
        expect(page.locator("#pauses > *")).to_have_count(count)
        expect(resume).to_be_focused()


def test_one_message_is_moved_with_a_reason(visit: Visit, queue: Queue) -> None:
    id, other = queue.add(), queue.add()
    visit.open("/messages")
    visit.open_row(id)
    visit.press("Move …", visit.dialog)
    visit.dialog.get_by_label("To", exact=True).select_option("Failed")
    visit.dialog.get_by_label("Reason").fill("not wanted")
    visit.press("Move", visit.dialog)
    visit.wait_for([other])
    assert message(queue, "dead", id)["last_error"] == "not wanted"


def test_a_selection_is_moved(visit: Visit, queue: Queue) -> None:
    ids = [queue.add() for _ in range(3)]
    page = visit.open("/messages")
    visit.select(ids[0], ids[2])
    expect(page.get_by_role("region", name="Selected messages")).to_contain_text("2 selected")
    visit.press("Move …")
    visit.dialog.get_by_label("To", exact=True).select_option("Archived")
    visit.press("Move", visit.dialog)
    visit.wait_for([ids[1]])
    expect(toast(page)).to_contain_text("2 of 2 messages moved")
    assert sorted(queue.ids("archived")) == sorted([ids[0], ids[2]])
    expect(page.get_by_role("region", name="Selected messages")).to_be_hidden()


def test_one_message_is_deleted_after_a_confirmation(visit: Visit, queue: Queue) -> None:
    id, other = queue.add(), queue.add()
    visit.open("/messages")
    for answer, left in (("Cancel", [other, id]), ("Delete", [other])):
        visit.open_row(id)
        visit.press("Delete …", visit.dialog)
        expect(visit.dialog).to_contain_text("can be undone for 10 minutes")
        visit.press(answer, visit.dialog)
        visit.wait_for(left)
        assert queue.ids("main") == left


def test_a_deletion_is_undone(visit: Visit, queue: Queue) -> None:
    ids = [queue.add() for _ in range(2)]
    page = visit.open("/messages")
    visit.press("Clear Waiting: 2 messages …")
    visit.press("Delete all", visit.dialog)
    visit.wait_for([])
    expect(toast(page).locator("p")).to_have_text("2 messages deleted. Undo")
    page.get_by_role("button", name="Undo").click()
    visit.wait_for(ids[::-1])
    expect(toast(page).locator("p")).to_have_text("2 restored")
    assert queue.ids("main") == ids[::-1]


def test_long_types_and_remaining_times_are_fully_visible(visit: Visit, queue: Queue) -> None:
    payloads: list[Any] = [{}, {"text": "an address and a few lines " * 9}]
    ids = [queue.add(type="demo.make_thumbnail", payload=payload) for payload in payloads]
    for _ in ids:
        queue.take("consumerId=worker-7f9c4d5b6c-x2x9q")
    page = visit.open("/messages/processing")
    for id in ids:
        expect(visit.row(id).locator(".countdown")).to_have_text(re.compile(r"\d+ s"))
        assert visit.row(id).locator("[data-label=Type]").evaluate(LINES) == 1
    assert page.locator(".sheet").first.evaluate("sheet => sheet.scrollWidth <= sheet.clientWidth")


def test_an_incomplete_undo_is_repeated(visit: Visit, queue: Queue) -> None:
    id = queue.add()
    page = visit.open("/messages")
    visit.press("Clear Waiting: 1 message …")
    visit.press("Delete all", visit.dialog)
    some = {"message": "0 restored; more remain, repeat to continue", "is_complete": False}
    page.route("**/undo", lambda route: route.fulfill(json=some), times=1)
    page.get_by_role("button", name="Undo").click()
    expect(toast(page)).to_contain_text("more remain")
    page.get_by_role("button", name="Undo").click()
    visit.wait_for([id])


def test_a_selection_is_deleted(visit: Visit, queue: Queue) -> None:
    ids = [queue.add() for _ in range(3)]
    page = visit.open("/messages")
    visit.wait_for(ids[::-1])
    page.get_by_label("Select all on this page").check()
    page.get_by_label(f"Select {ids[1]}").uncheck()
    visit.press("Delete …")
    expect(visit.dialog.get_by_role("heading")).to_have_text("Delete 2 messages?")
    visit.press("Delete", visit.dialog)
    visit.wait_for([ids[1]])
    assert queue.ids("main") == [ids[1]]


def test_a_state_is_cleared_with_any_filter(visit: Visit, queue: Queue) -> None:
    queue.add()
    queue.add(type="other")
    left = queue.dead()
    page = visit.open("/messages?filterType=mail")
    expect(page.locator('[data-count="main"]')).to_have_text("2")
    visit.press("Clear Waiting: 2 messages …")
    expect(visit.dialog.get_by_role("heading")).to_have_text("Delete all 2 messages in Waiting?")
    expect(visit.dialog).to_contain_text("This ignores the filters above, and includes messages that arrive before you")
    visit.press("Delete all")
    visit.wait_for([])
    assert (queue.sizes(), queue.ids("dead")) == ((0, 0, 1, 0, 0), [left])


def test_clearing_is_separate_from_the_filter_and_not_offered_for_an_empty_list(visit: Visit, queue: Queue) -> None:
    page = visit.open("/messages")
    expect(page.locator("#empty")).to_be_visible()
    expect(page.locator("#clear")).to_be_hidden()
    expect(page.locator("#filter #clear")).to_have_count(0)
    queue.add()
    expect(page.get_by_role("button", name="Clear Waiting: 1 message …", exact=True)).to_be_visible()


def test_more_than_a_thousand_messages_are_cleared_only_with_the_name_of_their_queue(
    visit: Visit, queue: Queue
) -> None:
    for _ in range(2):
        assert queue.post("/queue/batch", [{"type": "mail"}] * 500).status == 201
    page = visit.open("/messages")
    visit.press("Clear Waiting: 1,000 messages …")
    expect(visit.dialog.get_by_role("textbox")).to_have_count(0)
    visit.press("Cancel", visit.dialog)

    queue.add()
    visit.press("Clear Waiting: 1,001 messages …")
    expect(visit.dialog.get_by_role("heading")).to_have_text("Delete all 1,001 messages in Waiting?")
    visit.press("Delete all")
    expect(visit.dialog).to_contain_text("Must be exactly: Waiting")
    visit.dialog.get_by_label("Type Waiting to confirm").fill("waiting room")
    visit.press("Delete all")
    expect(visit.dialog.locator("[aria-invalid]")).to_have_count(1)
    assert queue.sizes()[0] == 1_001

    visit.dialog.get_by_label("Type Waiting to confirm").fill("Waiting")
    visit.press("Delete all")
    expect(toast(page)).to_contain_text("1,001 messages deleted")
    visit.wait_for([])
    assert queue.sizes()[0] == 0


def test_clear_by_another_person_empties_the_page(visit: Visit, queue: Queue) -> None:
    queue.add()
    page = visit.open("/messages")
    expect(page.locator('[data-count="main"]')).to_have_text("1")
    queue.delete("/queue/main/clear")
    expect(page.locator("#empty")).to_be_visible()
    expect(page.locator('[data-count="main"]')).to_have_text("0")


# Replaying


def test_one_dead_letter_is_replayed(visit: Visit, queue: Queue) -> None:
    id, other = queue.dead(), queue.dead()
    visit.open("/messages/failed")
    visit.open_row(id)
    visit.press("Replay", visit.dialog)
    visit.wait_for([other])
    assert (queue.ids("main"), queue.ids("dead")) == ([id], [other])


def test_replay_is_not_offered_for_a_dead_letter_that_cannot_be_decoded(visit: Visit, queue: Queue) -> None:
    with queue.redis() as client:
        client.xadd(EVERYTHING["QUEUE_NAME"], {"data": "garbage"})
    assert queue.get("/queue/message").status == 404
    (id,) = queue.ids("dead")
    visit.open("/messages/failed")
    visit.open_row(id)
    expect(visit.dialog.locator("menu button")).to_have_text(["Close", "Delete …", "Move …"])
    visit.open(f"/messages/{id}")
    expect(visit.page.get_by_role("region", name=f"message {id}")).to_contain_text("delete or archive it")
    expect(visit.page.get_by_role("button", name="Replay")).to_have_count(0)


def test_a_selection_of_dead_letters_is_replayed(visit: Visit, queue: Queue) -> None:
    ids = [queue.dead() for _ in range(3)]
    page = visit.open("/messages/failed")
    visit.select(ids[0], ids[2])
    visit.press("Replay")
    expect(toast(page)).to_contain_text("2 of 2 messages moved")  # which disappears after some seconds
    visit.wait_for([ids[1]])
    assert sorted(queue.ids("main")) == sorted([ids[0], ids[2]])


def test_all_matching_dead_letters_are_replayed_after_a_count(visit: Visit, queue: Queue) -> None:
    ids = [queue.dead(type="mail", payload={"to": f"ada {at}"}) for at in range(3)]
    others = [queue.dead(type="other", payload="ada"), queue.dead(payload="bob")]
    page = visit.open("/messages/failed")
    page.get_by_label("Type").fill("mail")
    page.get_by_label("Search").fill("ada")
    visit.wait_for(ids[::-1])
    visit.press("Replay all that match")
    expect(visit.dialog.get_by_role("heading")).to_have_text("Replay 3 failed messages?")
    visit.press("Cancel")
    assert len(queue.ids("dead")) == 5
    visit.press("Replay all that match")
    visit.press("Replay", visit.dialog)
    visit.wait_for([])
    assert sorted(queue.ids("main")) == sorted(ids)
    assert sorted(queue.ids("dead")) == sorted(others)


def test_a_number_that_only_the_list_can_read_replays_nothing(visit: Visit, queue: Queue) -> None:
    wanted, other = queue.add(priority=0), queue.add(priority=5)
    queue.post("/queue/move", {"messages": [wanted, other], "toQueue": "dead"})
    page = visit.open("/messages/failed")
    visit.wait_for([other, wanted])
    page.get_by_label("Priority").fill("0_0")
    visit.wait_for([wanted])
    visit.press("Replay all that match")
    visit.expect_status(422)
    visit.press("Replay", visit.dialog)
    expect(visit.dialog).to_contain_text("valid integer")
    assert len(queue.ids("dead")) == 2


# What others wrote


@pytest.mark.smoke
def test_script_in_data_is_shown_as_text(visit: Visit, queue: Queue) -> None:
    script = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    id = f"<b onmouseover=alert(3)>{script}"[:64]
    added = queue.post("/queue/message", {"id": id, "type": script, "payload": {script: [script, "</script>"]}})
    id = added.body["id"] if added.status == 201 else queue.add(type=script, payload={script: [script, "</script>"]})
    queue.post("/queue/move", {"messages": [id], "toQueue": "dead", "errorReason": script})
    page = visit.open("/messages/failed")
    expect(visit.row(id)).to_contain_text(script)
    visit.open_row(id)
    expect(visit.dialog).to_contain_text(script)
    visit.press("Edit …")
    expect(visit.dialog.get_by_label("Type", exact=True)).to_have_value(script)
    visit.expect_status(422)
    visit.dialog.get_by_label("Priority").fill("<i>9</i>")
    visit.press("Save")
    visit.press("Cancel")
    page.get_by_label("Search").fill(script)
    visit.wait_for([id])
    page.goto(f"{visit.origin}/messages/<img src=x onerror=alert(4)>")
    visit.expect_status(404)
    assert page.locator("main img, main script, main b, dialog img").count() == 0


# Dialogs that are closed before the server has answered


def test_an_error_after_a_dialog_was_closed_is_shown(visit: Visit, queue: Queue) -> None:
    id = queue.add()
    held: list[Route] = []
    page = visit.open("/messages")
    page.route("**/api/queue/messages/delete*", lambda route: held.append(route))
    visit.select(id)
    visit.press("Delete …")
    visit.press("Delete", visit.dialog)
    eventually(lambda: page.evaluate("true") and bool(held))
    page.keyboard.press("Escape")
    expect(visit.dialog).to_have_count(0)
    visit.expect_status(503)
    held[0].fulfill(status=503, json={"error": "unavailable", "message": "Redis does not answer"})
    expect(toast(page)).to_have_text("Redis does not answer")


def test_an_action_without_a_response_does_not_claim_to_be_repeated(visit: Visit, queue: Queue) -> None:
    id = queue.add()
    visit.expect(BROKEN_OFF)
    page = visit.open("/messages")
    page.route("**/api/queue/messages/delete*", lambda route: route.abort())
    visit.select(id)
    visit.press("Delete …")
    visit.press("Delete", visit.dialog)
    unknown = "Queue Manager does not answer; the outcome of the request is unknown"
    expect(visit.dialog.get_by_role("alert").filter(has_text=unknown)).to_be_visible()


def test_an_undo_is_pressed_while_a_dialog_is_open(visit: Visit, queue: Queue) -> None:
    deleted, other = queue.add(), queue.add()
    page = visit.open("/messages")
    visit.select(deleted)
    visit.press("Delete …")
    visit.press("Delete", visit.dialog)
    visit.wait_for([other])
    visit.open_row(other)
    page.get_by_role("button", name="Undo").click()
    expect(visit.row(deleted)).to_be_attached()
    expect(toast(page)).to_have_text("1 restored")
    visit.press("Close", visit.dialog)
    expect(toast(page)).to_have_text("1 restored")
