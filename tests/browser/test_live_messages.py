"""Messages are seen as they move: by the server's clock, without a reload, without a gap over broken connections."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import APIResponse, Page, Route, expect

from tests.browser.visit import BROKEN_OFF, Visit, Visiting
from tests.e2e.tcp_proxy import TcpProxy
from tests.eventually import eventually
from tests.web.queue_client import Queue
from tests.web.web_process import Web

pytestmark = pytest.mark.browser

HOUR = 3_600
RED = "rgb(179, 38, 30)"  # --bad, in the light scheme
LOCK = "browser:overdue_requeue_lock"  # held by sweepers of an older service: nobody else sweeps meanwhile

WRONG_CLOCK = """{
  const Right = Date;
  globalThis.Date = class extends Right {
    constructor(...given) { super(...(given.length ? given : [Right.now() + SECONDS * 1000])); }
    static now() { return Right.now() + SECONDS * 1000; }
  };
}"""
HEARD = """{
  globalThis.heard = [];
  globalThis.opened = 0;
  globalThis.EventSource = class extends EventSource {
    constructor(...given) {
      super(...given);
      this.addEventListener("open", () => opened++);
      this.addEventListener("queue-update", (event) => heard.push(event.lastEventId));
    }
  };
}"""

LISTS = "**/api/queue/main/messages*"
ROWS_PER_FRAME = 10  # see list.js
FRAMES_BY_HAND = """{
  globalThis.awaited = [];
  globalThis.requestAnimationFrame = (act) => awaited.push(act);
  globalThis.EventSource = class extends EventSource {
    constructor(...given) {
      super(...given);
      globalThis.source = this;
    }
  };
}"""
RENDERED = """() => {
  globalThis.rendered = { rows: 0, where: 0 };
  for (const id of Object.keys(rendered)) {
    new MutationObserver((changes) => {
      for (const { addedNodes } of changes) rendered[id] += addedNodes.length;
    }).observe(document.getElementById(id), { childList: true });
  }
}"""
SHOW_FRAME = "awaited.splice(0).map((act) => act()).length"
GHOSTS = """(count) => {
  for (let n = 0; n < count; n += 1) {
    const ghost = { id: `ghost-${n}`, place: "main", type: "ghost", priority: 0, attempt_count: 0, payload: 1 };
    const data = JSON.stringify({ type: "enqueue", payload: { ids: [ghost.id] }, messages: [ghost] });
    source.dispatchEvent(new MessageEvent("queue-update", { data }));
  }
}"""


OPEN, CLOSED = 1, 2  # states of an EventSource
HIDE = """(isHidden) => {
  Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
  dispatchEvent(new Event("visibilitychange"));
}"""


@contextmanager
def frozen(web: Web) -> Iterator[None]:
    """Let a web process do nothing within the block."""
    os.kill(web.child.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(web.child.pid, signal.SIGCONT)


def left(queue: Queue) -> int:
    """Return the seconds that the only message in processing has left, by the server's own clock."""
    page = queue.page("processing")
    return math.ceil(float(page["messages"][0]["deadline_at"] - page["server_time"]))


def show_frame(page: Page) -> None:
    """Show the one frame that the page waits for; after much drawing it asks for the next one a little later."""
    eventually(lambda: page.evaluate("awaited.length") == 1)
    assert page.evaluate(SHOW_FRAME) == 1


def shown(page: Page) -> str:
    return page.locator(".countdown").inner_text()


def is_beyond(page: Page, what: str, least: int) -> bool:
    return int(page.evaluate(what)) > least


def open_read(visit: Visit, place: str) -> Page:
    """Open the messages of a place; return after the list was read at first, and again when the page was live."""
    page = visit.open("/messages" if place == "main" else f"/messages/{place}")

    def is_read() -> bool:
        page.evaluate("true")  # a call to the browser lets answers be noted
        return [one.path for one in visit.answers].count(f"/api/queue/{place}/messages") == 2

    eventually(is_read)
    return page


def events(queue: Queue) -> list[str]:
    """Return the ids of all events, as the server of the queue keeps them."""
    with queue.redis() as client:
        kept: Any = client.xrange("browser:events")
    return [id.decode() for id, _ in kept]


# The countdown


@pytest.mark.parametrize("wrong", [0, HOUR, -HOUR])
def test_the_countdown_is_correct_with_any_browser_clock(visiting: Visiting, queue: Queue, wrong: int) -> None:
    queue.add(ackTimeout=900)
    queue.take()
    visit = visiting(queue.web, script=WRONG_CLOCK.replace("SECONDS", str(wrong)))
    page = visit.open("/messages/processing")
    assert abs(page.evaluate("Date.now() - performance.timeOrigin - performance.now()") / 1000 - wrong) < 60

    def is_true() -> bool:
        before, text, after = left(queue), shown(page), left(queue)
        return text.endswith(" s") and before + 1 >= int(text[:-2]) >= after - 1

    eventually(is_true)
    first = shown(page)
    eventually(lambda: shown(page) != first)
    eventually(is_true)


def test_an_overdue_message_is_red_and_disappears_when_it_is_requeued(visit: Visit, queue: Queue) -> None:
    id = queue.add(ackTimeout=1)
    with queue.redis() as client:
        client.set(LOCK, "1")
        queue.take()
        countdown = visit.open("/messages/processing").locator(".countdown")
        expect(countdown).to_have_text("Overdue")
        expect(countdown).to_have_css("color", RED)
        assert visit.ids == [id]
        client.delete(LOCK)
    expect(visit.row(id)).to_have_count(0)
    expect(visit.page.locator("#empty")).to_be_visible()
    assert queue.ids("main") == [id]


def test_no_countdown_is_shown_without_a_start(visit: Visit, queue: Queue) -> None:
    queue.add(ackTimeout=900)
    queue.take()
    visit.page.route("**/api/queue/processing/messages*", without("deadline_at", "custom_ack_timeout"))
    page = visit.open("/messages/processing")
    expect(page.locator(".countdown")).to_have_text(re.compile(r"[1-3]?\d s"))  # of the queue's 30
    page.route("**/api/queue/processing/messages*", without("deadline_at", "processing_started_at", "dequeued_at"))
    page.reload()
    expect(page.locator(".countdown")).to_have_text("—")


def without(*fields: str) -> Callable[[Route], None]:
    """Answer as the process does, of a message that was taken by an older consumer: it lacks some fields."""

    def answer(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        for message in body["messages"]:
            message.update(dict.fromkeys(fields))
        route.fulfill(response=response, json=body)

    return answer


# Others at work


def test_changes_by_others_appear_without_a_reload(visit: Visit, queue: Queue) -> None:
    page = visit.open("/messages")
    page.evaluate("globalThis.isSamePage = true")
    expect(page.locator("#state")).to_have_text("Live")
    first, second = queue.add(), queue.add()
    expect(visit.row(second)).to_be_visible()
    expect(page.locator('[data-count="main"]')).to_have_text("2")
    assert queue.take()["id"] == first
    expect(visit.row(first)).to_have_count(0)
    expect(page.locator('[data-count="processing"]')).to_have_text("1")
    queue.put(f"/queue/message/{second}", {"type": "letter"})
    expect(visit.row(second)).to_contain_text("letter")
    queue.delete(f"/queue/message/{second}")
    expect(page.locator("#empty")).to_be_visible()
    assert page.evaluate("isSamePage")


def test_deliveries_of_messages_on_other_pages_are_counted(visit: Visit, queue: Queue) -> None:
    queue.post("/queue/batch", [{"type": "mail"}] * 60)
    page = open_read(visit, "main")
    expect(page.locator("#where")).to_have_text("50 of 60")
    for _ in range(7):
        queue.take()
    expect(page.locator("#where")).to_have_text("50 of 53")


@pytest.mark.parametrize("first", [45, 60])
def test_the_next_page_begins_after_rows_that_arrivals_pushed_off_the_page(
    visit: Visit, queue: Queue, first: int
) -> None:
    queue.post("/queue/batch", [{"type": "mail"}] * first)
    page = open_read(visit, "main")
    for _ in range(10):
        queue.add()
    ids = queue.ids("main", "limit=100")
    visit.wait_for(ids[:50])
    visit.press("Older")
    visit.wait_for(ids[50:])
    visit.press("Newer")
    visit.wait_for(ids[:50])
    expect(page.locator("#where")).to_have_text(f"50 of {first + 10}")


def test_live_regions_are_changed_only_if_their_text_changes(visit: Visit, queue: Queue) -> None:
    id = queue.add()
    page = open_read(visit, "main")
    visit.select(id)
    expect(page.locator("#announced")).to_have_attribute("aria-live", "off")
    page.evaluate(
        """() => {
          globalThis.changes = [];
          const observer = new MutationObserver((all) => changes.push(...all.map(({ target }) => target.id)));
          for (const place of document.querySelectorAll("#state, #picked-count, #problem")) {
            observer.observe(place, { childList: true });
          }
        }"""
    )
    other = queue.add()
    visit.wait_for([other, id])
    queue.post("/queue/pause", {"types": ["letter"]})  # the page reads everything again
    expect(page.locator("#pauses > *")).to_have_count(1)
    assert page.evaluate("changes") == []


def test_times_have_their_day_when_it_is_over(visit: Visit, queue: Queue) -> None:
    id = queue.add()
    visit.expect(BROKEN_OFF)
    visit.page.clock.install()
    page = visit.open("/messages")
    created = visit.row(id).locator("[data-label^=Created]")
    expect(created).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    text = created.inner_text()
    page.route("**/api/**", lambda route: route.abort())  # otherwise the page would learn the server's time
    page.clock.fast_forward("24:00:00")
    expect(created).to_have_text(re.compile(rf"^\d+ [A-Z][a-z]+ (\d+ )?{text}$"))


def test_a_message_of_another_page_that_is_changed_does_not_arrive(visit: Visit, queue: Queue) -> None:
    old = queue.add()
    queue.post("/queue/batch", [{"type": "mail"}] * 59)
    page = open_read(visit, "main")
    expect(page.locator("#where")).to_have_text("50 of 60")
    queue.put(f"/queue/message/{old}", {"ackTimeout": 99})
    expect(visit.row(queue.add())).to_be_visible()
    expect(page.locator("#where")).to_have_text("50 of 61")
    visit.wait_for(queue.ids("main"))


def test_a_touch_changes_the_order_and_not_the_number_of_messages(visit: Visit, queue: Queue) -> None:
    queue.post("/queue/batch", [{"type": "mail"}] * 55)
    taken = [queue.take() for _ in range(55)]
    page = open_read(visit, "processing")
    expect(page.locator("#where")).to_have_text("50 of 55")
    for message in taken[:3]:  # which have the earliest deadlines
        touched = {"lock_token": message["lock_token"], "extend_seconds": 9_000}
        queue.put(f"/queue/message/{message['id']}/touch", touched)
    eventually(lambda: visit.ids[:3] == [message["id"] for message in reversed(taken[:3])])
    expect(page.locator("#where")).to_have_text("50 of 55")
    first = taken[2]
    queue.put(f"/queue/message/{first['id']}/touch", {"lock_token": first["lock_token"], "extend_seconds": 5})
    expect(visit.row(first["id"])).to_have_count(0)
    visit.wait_for(queue.ids("processing")[:50])


@pytest.mark.smoke
def test_a_burst_of_events_is_rendered_once_per_frame(
    visiting: Visiting, queue: Queue, figure: Callable[[str], None]
) -> None:
    burst, size = 120, 50
    at_once = 60  # fewer than make the process leave messages out of their events
    visit = visiting(queue.web, script=HEARD + FRAMES_BY_HAND)
    visit.expect(BROKEN_OFF)
    visit.page.route(LISTS, lambda route: None)  # all that is shown comes from events
    page = visit.open("/messages")
    expect(page.locator("#state")).to_have_text("Live")
    page.evaluate(RENDERED)

    ids: list[str] = []
    while len(ids) < burst:
        ids += [queue.add() for _ in range(at_once)]
        eventually(partial(is_beyond, page, "heard.length", len(ids) - 1))
    assert page.evaluate("rendered") == {"rows": 0, "where": 0}

    for rows in range(ROWS_PER_FRAME, size + 1, ROWS_PER_FRAME):
        show_frame(page)
        assert page.evaluate("rendered") == {"rows": rows, "where": 1}
        assert visit.ids == ids[: -rows - 1 : -1]
    expect(page.locator('[data-count="main"]')).to_have_text(f"{burst}")
    assert page.evaluate("awaited.length") == 0
    figure(
        f"messages page: a burst of {burst} events is rendered once, {size} new rows in {size // ROWS_PER_FRAME} frames"
    )


def test_rows_are_replaced_in_place_from_the_top(visiting: Visiting, queue: Queue) -> None:
    size = 50
    visit = visiting(queue.web, script=FRAMES_BY_HAND)
    visit.expect(BROKEN_OFF)
    visit.page.route(LISTS, lambda route: None)
    page = visit.open("/messages")
    expect(page.locator("#state")).to_have_text("Live")
    old, new = ([f"ghost-{n}" for n in range(end - 1, end - 1 - size, -1)] for end in (size, 2 * size))

    page.evaluate(GHOSTS, size)
    for _ in range(0, size, ROWS_PER_FRAME):
        show_frame(page)
    assert visit.ids == old

    page.evaluate(GHOSTS, 2 * size)
    for rows in range(ROWS_PER_FRAME, size + 1, ROWS_PER_FRAME):
        show_frame(page)
        assert visit.ids == new[:rows] + old[rows:]


def test_the_page_reads_again_after_too_many_events(visiting: Visiting, queue: Queue) -> None:
    held: list[Route] = []
    is_read = Event()
    visit = visiting(queue.web, script=FRAMES_BY_HAND)
    visit.page.route(LISTS, lambda route: route.continue_() if is_read.is_set() else held.append(route))
    page = visit.open("/messages")
    expect(page.locator("#state")).to_have_text("Live")
    eventually(lambda: page.evaluate("true") and bool(held))
    page.evaluate(GHOSTS, 3)
    show_frame(page)
    visit.wait_for(["ghost-2", "ghost-1", "ghost-0"])  # what events say is believed
    is_read.set()
    for route in held:
        route.continue_()
    visit.wait_for([])

    page.evaluate(GHOSTS, 2_000)
    show_frame(page)
    visit.wait_for([])


def test_events_that_have_counts_cause_no_count(visit: Visit, queue: Queue) -> None:
    requests: list[str] = []
    visit.page.on("request", lambda request: requests.append(request.url))
    page = visit.open("/messages")
    expect(page.locator("#state")).to_have_text("Live")

    def counted() -> list[str]:
        page.evaluate("true")  # a call to the browser lets requests be noted
        return [url for url in requests if "/api/queue/status" in url]

    for total in (120, 240, 360):  # too many at once for their event to contain them
        queue.post("/queue/batch", [{"type": "mail"}] * 120)
        expect(page.locator("#where")).to_have_text(f"50 of {total}")
        expect(page.locator('[data-count="main"]')).to_have_text(f"{total}")
    assert counted() == [f"{visit.origin}/api/queue/status?include_messages=false"]

    queue.post("/queue/pause", {"types": ["letter"]})
    expect(page.locator("#pauses > *")).to_have_count(1)
    assert len(counted()) == 2


def test_late_counts_do_not_overwrite_newer_events(visit: Visit, queue: Queue) -> None:
    asked: list[tuple[Route, APIResponse]] = []
    visit.page.route("**/api/queue/status*", lambda route: asked.append((route, route.fetch())))
    page = visit.open("/messages")
    count = page.locator('[data-count="main"]')
    expect(page.locator("#state")).to_have_text("Live")
    eventually(lambda: page.evaluate("true") and bool(asked))  # a call to the browser lets the route's handler run
    queue.add()
    expect(count).to_have_text("1")
    for route, response in asked:
        assert response.json()["main"] == 0
        route.fulfill(response=response)
    page.unroute("**/api/queue/status*")
    page.evaluate("fetch('/api/queue/status').then((response) => response.json())")  # its answer comes after those
    expect(count).to_have_text("1")


def test_a_hundred_broken_connections_leave_no_gap(visiting: Visiting, queue: Queue) -> None:
    """The browser is told to come back after 10 ms instead of a second; everything else is as it is."""
    faster = {b"retry: 1000\r\n": b"retry: 0010\r\n"}
    with TcpProxy(queue.web.port, replacing=faster) as proxy:
        visit = visiting(f"http://127.0.0.1:{proxy.port}", script=HEARD)
        visit.expect(BROKEN_OFF)
        page = visit.open("/messages")
        expect(page.locator("#state")).to_have_text("Live")
        ids = [queue.add()]
        eventually(partial(is_beyond, page, "heard.length", 0))
        for at in range(100):
            opened = page.evaluate("opened")
            proxy.close_connections()
            ids.append(queue.add(payload=at))
            eventually(partial(is_beyond, page, "opened", opened), every=0.005)
        expect(page.locator("#state")).to_have_text("Live")
        told = events(queue)
        assert len(told) == 101
        eventually(partial(is_beyond, page, "heard.length", 100))
        assert page.evaluate("heard") == told
        assert queue.ids("main") == ids[:-51:-1]
        visit.wait_for(ids[:-51:-1])
        expect(page.locator("#where")).to_have_text("50 of 101")
        expect(page.locator("#problem")).to_be_empty()


def test_a_disconnected_page_reports_it_and_catches_up(visiting: Visiting, queue: Queue) -> None:
    with TcpProxy(queue.web.port) as proxy:
        visit = visiting(f"http://127.0.0.1:{proxy.port}")
        visit.expect(BROKEN_OFF)
        page = visit.open("/messages")
        expect(page.get_by_role("heading", name="History")).to_be_visible()  # or its script would be cut off
        expect(page.locator("#state")).to_have_text("Live")
        proxy.close()
        expect(page.locator("#state")).to_have_text("Reconnecting …")
        id = queue.add()
        proxy.open()
        expect(page.locator("#state")).to_have_text("Live")
        expect(visit.row(id)).to_be_visible()


def test_an_unresponsive_server_is_noticed(visit: Visit, queue: Queue) -> None:
    visit.expect(BROKEN_OFF)
    visit.page.clock.install()
    page = visit.open("/messages")
    expect(page.locator("#state")).to_have_text("Live")
    with frozen(queue.web):
        page.clock.fast_forward(21_000)
        expect(page.locator("#state")).to_have_text("Not answering …", timeout=15_000)
    id = queue.add()
    expect(page.locator("#state")).to_have_text("Live")
    expect(visit.row(id)).to_be_visible()


def test_a_connection_without_pings_is_replaced(visiting: Visiting, queue: Queue) -> None:
    """It was lost without an error, while the server answers over others. Only the clock of the page runs faster."""
    visit = visiting(queue.web, script=FRAMES_BY_HAND)
    visit.page.clock.install()
    page = visit.open("/messages")
    expect(page.locator("#state")).to_have_text("Live")
    page.evaluate("globalThis.first = source")
    page.clock.fast_forward(15_000)
    page.evaluate('source.dispatchEvent(new MessageEvent("ping", { data: "" }))')
    page.clock.fast_forward(15_000)
    assert page.evaluate("source === first && source.readyState") == OPEN
    page.clock.fast_forward(15_000)
    eventually(lambda: page.evaluate("source !== first && source.readyState") == OPEN)
    assert page.evaluate("first.readyState") == CLOSED
    expect(page.locator("#state")).to_have_text("Live")


def test_failed_counts_are_repeated_once_however_often_the_page_reloads(visit: Visit) -> None:
    """Each refused connection reloads the page, and each reload counts the messages."""
    visit.expect_status(503)
    page = visit.page
    page.clock.install()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(urlsplit(request.url).path))
    for path in ("events", "status"):
        page.route(f"**/api/queue/{path}*", lambda route: route.fulfill(status=503, body="null"))
    visit.open("/messages")

    def number(path: str) -> int:
        page.evaluate("true")  # a call to the browser lets requests be noted
        return requests.count(f"/api/queue/{path}")

    for second in range(20):
        page.clock.run_for(1_000)
        eventually(lambda second=second: number("events") > second)
    assert number("status") <= 2 * number("events")


def test_a_hidden_page_closes_its_connection(visit: Visit, queue: Queue) -> None:
    visit.page.add_init_script(FRAMES_BY_HAND)
    visit.page.clock.install()
    page = visit.open("/messages")
    expect(page.locator("#state")).to_have_text("Live")
    page.evaluate(HIDE, True)
    for seconds, state in ((10, CLOSED), (50, OPEN), (10, CLOSED)):
        page.clock.fast_forward(seconds * 1_000)
        eventually(lambda state=state: page.evaluate("source.readyState") == state)
    page.evaluate(HIDE, False)
    eventually(lambda: page.evaluate("source.readyState") == OPEN)


def test_a_hidden_page_resumes_after_the_position_of_the_last_ping(visit: Visit, queue: Queue) -> None:
    visit.page.add_init_script(FRAMES_BY_HAND)
    visit.page.clock.install()
    page = visit.open("/messages")
    expect(page.locator("#state")).to_have_text("Live")
    page.evaluate('source.dispatchEvent(new MessageEvent("ping", { data: "", lastEventId: "0-0" }))')
    page.evaluate(HIDE, True)
    for seconds, state in ((10, CLOSED), (50, OPEN)):
        page.clock.fast_forward(seconds * 1_000)
        eventually(lambda state=state: page.evaluate("source.readyState") == state)
    assert str(page.evaluate("source.url")).endswith("/api/queue/events?lastEventId=0-0")


def test_a_page_that_missed_deleted_events_reads_again(visiting: Visiting, queue: Queue) -> None:
    with TcpProxy(queue.web.port) as proxy:
        visit = visiting(f"http://127.0.0.1:{proxy.port}")
        visit.expect(BROKEN_OFF)
        page = visit.open("/messages")
        expect(page.locator("#state")).to_have_text("Live")
        queue.add()
        expect(page.locator("#rows > tr")).to_have_count(1)
        proxy.close()
        queue.add(), queue.add()
        with queue.redis() as client:
            client.xtrim("browser:events", maxlen=1, approximate=False)
        proxy.open()
        expect(page.locator("#toasts")).to_contain_text("Some updates were missed")
        expect(page.locator("#rows > tr")).to_have_count(3)
