"""Messages found by filters, order and pages, which are in the URL: a reload keeps them, and back undoes them."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.visit import Visit
from tests.web.queue_client import Queue

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(
    ("label", "text", "query"),
    [
        ("Type", "letter", "filterType=letter"),
        ("Priority", "3", "filterPriority=3"),
        ("Attempts", "1", "filterAttempts=1"),
        ("Search payload, id, error", "ada & bob", "search=ada+%26+bob"),
    ],
)
def test_a_filter_is_in_the_url_and_survives_reload_and_back(
    visit: Visit, queue: Queue, label: str, text: str, query: str
) -> None:
    wanted = queue.add(type="letter", priority=9, payload={"to": "ada & bob"})
    token = queue.take()["lock_token"]
    queue.post(f"/queue/message/{wanted}/nack", {"lock_token": token})
    queue.put(f"/queue/message/{wanted}", {"priority": 3})
    other = queue.add(payload="ada")
    page = visit.open("/messages")
    both = queue.ids("main")
    assert sorted(both) == sorted([wanted, other])
    visit.wait_for(both)
    field = page.get_by_label(label, exact=True)
    field.fill(text)
    field.press("Enter")
    visit.wait_for([wanted])
    assert visit.path == f"/messages?{query}"
    page.reload()
    expect(field).to_have_value(text)
    visit.wait_for([wanted])
    page.go_back()
    visit.wait_for(both)
    expect(field).to_have_value("")
    page.go_forward()
    visit.wait_for([wanted])


def test_a_wrong_filter_is_said(visit: Visit) -> None:
    visit.expect_status(422)
    page = visit.open("/messages?filterPriority=-1")
    expect(page.get_by_label("Priority")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#problem")).to_contain_text("filterPriority")
    page.get_by_label("Priority").fill("1")
    expect(page.locator("#problem")).to_be_empty()


def test_columns_sort_both_ways(visit: Visit, queue: Queue) -> None:
    low, high, middle = (queue.add(type=type, priority=priority) for type, priority in (("b", 1), ("c", 9), ("a", 5)))
    page = visit.open("/messages")
    head = page.get_by_role("columnheader", name="Priority")
    head.get_by_role("button").click()
    visit.wait_for([high, middle, low])
    expect(head).to_have_attribute("aria-sort", "descending")
    head.get_by_role("button").click()
    visit.wait_for([low, middle, high])
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert visit.path == "/messages?sort=priority&order=asc"
    page.reload()
    visit.wait_for([low, middle, high])
    page.go_back()
    visit.wait_for([high, middle, low])


@pytest.mark.parametrize("query", ["", "?sort=created_at&order=asc"])
def test_pages_follow_each_other_both_ways(visit: Visit, queue: Queue, query: str) -> None:
    ids = [queue.add() for _ in range(110)]
    expected = ids if query else ids[::-1]
    pages = [expected[:50], expected[50:100], expected[100:]]
    page = visit.open(f"/messages{query}")
    older, newer = page.get_by_role("button", name="Older"), page.get_by_role("button", name="Newer")
    visit.wait_for(pages[0])
    expect(newer).to_be_disabled()
    older.click()
    visit.wait_for(pages[1])
    page.reload()
    visit.wait_for(pages[1])
    older.click()
    visit.wait_for(pages[2])
    expect(older).to_be_disabled()
    newer.click()
    visit.wait_for(pages[1])
    newer.click()
    visit.wait_for(pages[0])
    for at in (1, 2):
        page.go_back()
        visit.wait_for(pages[at])
