"""The page of the audit log: who changed what, its filters, and its links to changed objects."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from services.audit import Actor, recorded
from tests.any_jobs import INVOICE
from tests.browser.visit import Visit, Visiting
from tests.web.credentials import OPERATOR, VIEWER
from tests.web.queue_client import Queue

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("clean")]


@pytest.mark.smoke
def test_an_edit_is_shown_with_both_values_and_leads_to_its_message(queue: Queue, visit: Visit) -> None:
    id = queue.add(payload=42)
    queue.put(f"/queue/message/{id}", {"payload": 4200})
    page = visit.open("/")
    page.get_by_role("link", name="Audit").click()
    row = page.locator("#rows > tr")
    expect(row).to_have_count(1)
    for text in ("loopback", "API · 127.0.0.1", "edit", "Messages", "payload 42 → 4200", "done"):
        expect(row).to_contain_text(text)
    row.get_by_role("link", name=id).click()
    expect(page.locator(".timeline")).to_contain_text("Edited by someone on this machine payload 42 → 4200")


def test_the_list_is_filtered_and_the_address_keeps_it(queue: Queue, visit: Visit) -> None:
    queue.post("/jobs/pause", {"names": [INVOICE]})
    queue.post("/marks", {"text": "v1.4"})
    queue.delete("/queue/message/nothing")
    page = visit.open("/audit")
    expect(page.locator("#rows > tr")).to_have_count(3)
    page.get_by_label("Action").select_option("delete")
    row = page.locator("#rows > tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("There is no message nothing in the queue")
    expect(row).to_contain_text("failed")
    page.reload()
    expect(row).to_have_count(1)
    page.get_by_label("From, in UTC").fill("2100-01-01T00:00")
    expect(page.get_by_role("heading", name="Nothing matches")).to_be_visible()
    visit.press("Clear the filter")
    expect(row).to_have_count(3)


def test_only_what_was_changed_is_counted(queue: Queue, visit: Visit) -> None:
    ids = [f"room-{number}" for number in range(10)]
    for changed in (1, 5):
        with recorded(Actor(who="ada", via="cli", address="here"), "retry", ids=ids) as action:
            action.succeeded(ids[:changed])
    cells = visit.open("/audit").locator("#rows td.text")
    expect(cells).to_have_text(["room-0, room-1, room-2 and 2 more", "room-0"])


def test_an_action_appears_without_reloading(queue: Queue, visit: Visit) -> None:
    page = visit.open("/audit")
    expect(page.get_by_role("heading", name="Nothing has been changed yet")).to_be_visible()
    queue.post("/jobs/pause", {"names": [INVOICE]})
    expect(page.locator("#rows > tr")).to_contain_text(f"names: {INVOICE}")


def test_a_deletion_can_be_undone_until_its_time_is_over(queue: Queue, visit: Visit) -> None:
    ids = [queue.add() for _ in range(2)]
    queue.post("/queue/messages/delete", {"messageIds": ids})
    page = visit.open("/audit")
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("2 restored")).to_be_visible()
    assert sorted(queue.ids("main")) == sorted(ids)
    expect(page.locator("#rows > tr").first).to_contain_text("undo")
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)


def test_a_viewer_sees_who_used_the_page(guarded: Queue, visiting: Visiting) -> None:
    operator, viewer = visiting(guarded.web), visiting(guarded.web)
    id = guarded.post("/queue/message", {"type": "mail"}, X_API_KEY=OPERATOR).body["id"]
    operator.log_in(OPERATOR)
    operator.open("/messages")
    operator.open_row(id)
    operator.press("Delete …")
    operator.press("Delete", operator.dialog)
    expect(operator.row(id)).to_have_count(0)
    viewer.log_in(VIEWER)
    expect(viewer.open("/audit").locator("#rows > tr")).to_contain_text("handpage · 127.0.0.1")
    page = viewer.open(f"/messages/{id}")
    expect(page.locator("#found")).to_contain_text("Deleted by hand at ")
