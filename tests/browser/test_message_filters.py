"""Messages found by filters, order and pages, which are in the URL: a reload keeps them, and back undoes them."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.browser.visit import Visit, Visiting
from tests.eventually import eventually
from tests.web.queue_client import Queue

pytestmark = pytest.mark.browser

SEARCHES_BY_HAND = """{
  globalThis.searches = [];
  globalThis.isByHand = true;
  const { fetch } = globalThis;
  globalThis.fetch = async (url, options) => {
    if (!isByHand || !url.includes("/search?")) return fetch(url, options);
    const { readable, writable } = new TransformStream();
    const writer = writable.getWriter();
    const { signal } = options;
    signal.addEventListener("abort", () => writer.abort(signal.reason));
    searches.push({ url, signal, send: (text) => writer.write(new TextEncoder().encode(text)) });
    return new Response(readable);
  };
}"""


@pytest.mark.parametrize(
    ("label", "text", "query"),
    [
        ("Type", "letter", "filterType=letter"),
        ("Priority", "3", "filterPriority=3"),
        ("Attempts", "1", "filterAttempts=1"),
        ("Search payload, id, error", "ada & bob", "search=ada+%26+bob"),
    ],
)
def test_a_filter_is_in_the_url_and_survives_reload_and_back_navigation(
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


def test_spaces_around_a_filter_are_left_out(visit: Visit, queue: Queue) -> None:
    wanted, other = queue.add(type="mail"), queue.add(type="letter")
    page = visit.open("/messages")
    visit.wait_for([other, wanted])
    page.get_by_label("Type").fill(" mail ")
    visit.wait_for([wanted])
    assert visit.path == "/messages?filterType=mail"


def test_the_mouse_wheel_changes_no_filter(visit: Visit, queue: Queue) -> None:
    page = visit.open("/messages?filterPriority=3")
    field = page.get_by_label("Priority")
    expect(field).to_have_value("3")
    field.click()
    wheels = "field => field.addEventListener('wheel', () => setTimeout(() => { globalThis.isTurned = true; }))"
    field.evaluate(wheels)
    page.mouse.wheel(0, -100)
    page.wait_for_function("globalThis.isTurned")
    expect(field).to_have_value("3")
    expect(field).to_have_attribute("inputmode", "numeric")


def test_a_wrong_filter_is_reported(visit: Visit) -> None:
    visit.expect_status(422)
    page = visit.open("/messages?filterPriority=-1")
    expect(page.get_by_label("Priority")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#problem")).to_contain_text("filterPriority")
    page.get_by_label("Priority").fill("1")
    expect(page.locator("#problem")).to_be_empty()


def test_list_marks_the_column_by_which_it_is_sorted_at_first(visit: Visit, queue: Queue) -> None:
    ids = [queue.add(priority=priority) for priority in (1, 9, 5)]
    page = visit.open("/messages")
    visit.wait_for(ids[::-1])
    sorted_by = page.locator("#list th[aria-sort]")
    expect(sorted_by).to_have_text("Created (by arrival)")
    expect(sorted_by).to_have_attribute("aria-sort", "descending")


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


def test_the_link_of_a_later_page_opens_the_newest(visit: Visit, queue: Queue) -> None:
    ids = [queue.add() for _ in range(51)]
    page = visit.open("/messages")
    page.get_by_role("button", name="Older").click()
    visit.wait_for(ids[:1])
    other = visit.context.new_page()
    other.goto(visit.origin + visit.path)
    other.get_by_role("button", name="Newest").click()
    expect(other.locator("#rows > tr")).to_have_count(50)
    expect(other.get_by_role("button", name="Newer")).to_be_disabled()


def test_a_search_continues_automatically_to_the_end(visit: Visit, queue: Queue) -> None:
    oldest = queue.add(type="letter")
    for _ in range(20):
        assert queue.post("/queue/batch", [{"type": "job"}] * 500).status == 201
    page = visit.open("/messages")
    expect(page.locator("#rows > tr")).to_have_count(50)
    field = page.get_by_label("Type", exact=True)
    field.fill("letter")
    field.press("Enter")
    visit.wait_for([oldest])
    expect(page.locator("#where")).to_have_text("1 of 1")
    expect(page.locator("#searching")).to_be_hidden()


def test_a_search_shows_its_progress_and_can_be_stopped(visiting: Visiting, queue: Queue) -> None:
    first, second = queue.add(type="letter"), queue.add(type="letter")
    messages = {message["id"]: message for message in queue.page("main")["messages"]}
    visit = visiting(queue.web, script=SEARCHES_BY_HAND)
    page = visit.open("/messages?filterType=letter")
    bar, stop = page.locator("#searching"), page.get_by_role("button", name="Stop")

    def send(search: int, name: str, data: object) -> None:
        page.evaluate(
            "([search, text]) => searches[search].send(text)",
            [search, f"event: {name}\r\ndata: {json.dumps(data)}\r\n\r\n"],
        )

    eventually(lambda: page.evaluate("searches.length") == 1)
    send(0, "progress", {"searched": 1_000, "total": 5_000, "found": 0, "cursor": "one"})
    expect(bar).to_contain_text("Searched 1,000 of 5,000 …")
    expect(page.locator("#nothing h2")).to_have_text("Nothing found so far")
    send(0, "matches", [messages[second]])
    send(0, "progress", {"searched": 2_500, "total": 5_000, "found": 1, "cursor": "two"})
    visit.wait_for([second])
    assert page.locator("#searched").evaluate("({ value, max }) => [value, max]") == [2_500, 5_000]
    expect(page.get_by_role("button", name="Older")).to_be_disabled()

    stop.click()
    expect(bar).to_contain_text("Stopped after 2,500 of 5,000: “Older” continues")
    expect(stop).to_be_hidden()
    expect(page.get_by_role("button", name="Older")).to_be_focused()
    assert page.evaluate("searches[0].signal.aborted")
    queue.add(type="letter")  # what happens later does not start it again
    expect(page.locator('[data-count="main"]')).to_have_text("3")
    assert page.evaluate("searches.length") == 1

    page.get_by_role("button", name="Older").click()
    eventually(lambda: page.evaluate("searches.length") == 2)
    assert "cursor=two" in page.evaluate("searches[1].url")
    send(1, "matches", [messages[first]])
    send(1, "end", {"searched": 2_500, "total": 5_000, "found": 1, "cursor": None})
    visit.wait_for([first])
    expect(bar).to_be_hidden()
    expect(page.locator("#where")).to_have_text("1 shown")  # of two that match


def test_a_search_whose_server_fails_reports_it_and_is_repeated(visiting: Visiting, queue: Queue) -> None:
    found = queue.add(type="letter")
    visit = visiting(queue.web, script=SEARCHES_BY_HAND)
    page = visit.open("/messages?filterType=letter")
    eventually(lambda: page.evaluate("searches.length") == 1)
    error = json.dumps({"error": "unavailable", "message": "The server is unavailable"})
    page.evaluate("(text) => searches[0].send(text)", f"event: error\r\ndata: {error}\r\n\r\n")
    expect(page.locator("#problem")).to_have_text("The server is unavailable")
    page.evaluate("globalThis.isByHand = false")
    visit.wait_for([found])
    expect(page.locator("#problem")).to_be_empty()


def test_the_filter_suggests_the_types_that_were_shown(visit: Visit, queue: Queue) -> None:
    queue.add(type="letter"), queue.add(type="invoice"), queue.add(type="letter")
    page = visit.open("/messages")
    expect(page.locator("#rows > tr")).to_have_count(3)
    options = page.locator("#types option")
    assert sorted(option.get_attribute("value") or "" for option in options.all()) == ["invoice", "letter"]
    expect(page.get_by_label("Type", exact=True)).to_have_attribute("list", "types")
