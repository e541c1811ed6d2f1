"""The overview, the pages of systems and the schedule: what they show, and the effect of each action."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from models import scan_run
from models.database import server_now
from queue_manager import pauses
from queue_manager.core.clock import seconds
from queue_manager.health_rules import Rule
from queue_manager.telemetry import worker_heartbeats
from tests.browser import sample_data
from tests.browser.visit import Visit
from tests.e2e.health_command import repeated
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import execute, make_room, make_work, scan
from tests.tasks.hand_worker import Message, waiting_messages
from tests.web.queue_client import Queue

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("clean")]
SCRIPT = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def sent(servers: Servers, name: str) -> list[Message]:
    return waiting_messages(servers.valkey.url, name)


def begin_scans(messages: list[Message]) -> None:
    """Mark these scans as running, as a worker does: a trigger marks its scan for one period only."""
    for message in messages:
        scan_run.begin(message.task, message.id, now=server_now())


def figure(card: Locator, name: str) -> Locator:
    """Return where a figure stands."""
    return card.locator("dl.facts > div").filter(has=card.page.locator(f"dt:text-is('{name}')")).locator("dd")


def card(page: Page, title: str) -> Locator:
    return page.get_by_role("article", name=title)


# The overview


def test_the_overview_shows_problems(visit: Visit, clean: Servers) -> None:
    sample_data.rooms()
    page = visit.open("/")
    attention = page.get_by_role("region", name="Needs attention")
    for said in ("No worker is online", "No beat is the leader", "1 stuck", "1 failed"):
        expect(attention).to_contain_text(said)
    for rule in (Rule.NO_WORKERS, Rule.NO_LEADER, Rule.STUCK_ITEMS, Rule.FAILED_ITEMS):
        expect(attention).to_contain_text(rule.action.replace("`", ""))
    for name, value in (("Due now", "1"), ("In progress", "1"), ("Stuck", "1"), ("Failed", "1")):
        expect(figure(card(page, "Rooms"), name)).to_have_text(value)
    attention.get_by_role("link", name="Rooms").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Rooms")


def test_each_problem_shows_the_severity_of_its_rule_in_a_word(visit: Visit, clean: Servers) -> None:
    sample_data.rooms()
    make_room(snooze_time="tomorrow")
    page = visit.open("/")
    attention = page.get_by_role("region", name="Needs attention")
    of_rooms = attention.get_by_role("listitem").filter(has=page.get_by_role("link", name="Rooms"))
    shows_severities(of_rooms)
    expect(card(page, "Rooms").locator("header .pill")).to_have_text("critical")
    shows_severities(visit.open("/rooms").locator("#health"))


def shows_severities(place: Locator) -> None:
    texts = ["malformed snooze_time", "oldest due item has waited", "1 stuck room", "1 failed room"]
    expect(place.locator(".need")).to_contain_text(texts)
    expect(place.locator(".need .pill")).to_have_text(["critical", "warning", "warning", "warning"])


def test_a_problem_leads_to_the_items_it_is_about(visit: Visit, queue: Queue) -> None:
    rooms = sample_data.rooms()
    dead = queue.dead()
    page = visit.open("/")
    attention = page.get_by_role("region", name="Needs attention")
    attention.get_by_role("link", name="1 failed room").click()
    visit.wait_for([rooms["failed"]])
    assert visit.path == "/rooms?state=failed"
    expect(page.locator("#health")).to_contain_text("1 stuck room")
    expect(page.locator("#health")).to_contain_text(Rule.STUCK_ITEMS.action)
    page.go_back()
    attention.get_by_role("link", name="1 dead letter").click()
    visit.wait_for([dead])
    assert visit.path == "/messages/failed"


@pytest.mark.smoke
def test_the_overview_is_updated_without_a_reload(visit: Visit, clean: Servers) -> None:
    page = visit.open("/")
    page.evaluate("globalThis.isSamePage = true")
    expect(figure(card(page, "Rooms"), "Due now")).to_have_text("0")
    expect(page.get_by_text("No workers").first).to_be_visible()
    make_room(server_now() - seconds(60))
    sample_data.lead(clean.valkey.url)
    sample_data.scans()
    expect(figure(card(page, "Rooms"), "Due now")).to_have_text("1")
    with repeated(lambda: worker_heartbeats.record("worker@here")):
        expect(page.get_by_text("worker@here")).to_be_visible()
    expect(page.get_by_text("a-host:1")).to_be_visible()
    expect(figure(card(page, "Rooms"), "Last scan")).to_contain_text("found 3, dispatched 2")
    assert page.evaluate("isSamePage")


# A system


@pytest.mark.parametrize(
    ("path", "tabs"),
    [
        ("/rooms", ["Due 0", "In progress 0", "Stuck 0", "Failed 0"]),
        ("/reviews", ["Due 0"]),
        ("/thumbnails", ["Due 0", "Stuck 0", "Failed 0"]),
    ],
)
def test_a_page_has_a_tab_with_a_number_for_each_state_that_its_items_can_have(
    visit: Visit, path: str, tabs: list[str]
) -> None:
    expect(visit.open(path).locator("#tabs a")).to_have_text(tabs)


def test_each_state_lists_its_items_and_is_in_the_url(visit: Visit) -> None:
    rooms = sample_data.rooms()
    page = visit.open("/rooms")
    tabs = page.get_by_role("navigation", name="Rooms by state")
    for title, state in (("Stuck", "stuck"), ("In progress", "in-progress"), ("Due", "due"), ("Failed", "failed")):
        tabs.get_by_role("link", name=title).click()
        expect(tabs.get_by_role("link", name=title)).to_contain_text("1")
        visit.wait_for([rooms[state]])
        assert visit.path == f"/rooms?state={state}"
    expect(visit.row(rooms["failed"])).to_contain_text("Boom: the socket broke")
    page.reload()
    visit.wait_for([rooms["failed"]])
    page.go_back()
    visit.wait_for([rooms["due"]])
    page.get_by_label("Search").fill("nothing")
    expect(page.get_by_role("heading", name="Nothing matches")).to_be_visible()


def test_a_list_that_is_read_slowly_is_read_again_after_four_times_as_long(visit: Visit) -> None:
    held: list[Route] = []
    visit.page.clock.install()
    rooms = [str(make_room(server_now() - seconds(60)))]
    page = visit.open("/rooms")
    visit.wait_for(rooms)
    due = figure(page.locator("main"), "Due now")
    expect(due).to_have_text("1")
    page.route(re.compile("/api/systems/support-snooze/items[?]"), lambda route: held.append(route))
    page.clock.pause_at(server_now() + seconds(3600))  # the time of the page is ours, and its rests are over
    rooms.insert(0, str(make_room(server_now() - seconds(30))))
    eventually(lambda: page.evaluate("1") and held)
    page.clock.run_for(500)
    held.pop().continue_()
    visit.wait_for(rooms)
    make_room(server_now() - seconds(10))
    expect(due).to_have_text("3")  # so the page knows that its list is old
    page.clock.run_for(1_900)
    page.evaluate("1")  # a call to the browser lets requests be noted
    assert not held
    page.clock.run_for(200)
    eventually(lambda: page.evaluate("1") and held)


def test_an_empty_page_that_is_not_the_last_has_a_hint_to_continue(visit: Visit) -> None:
    answer = {"items": [], "cursor": "more", "server_time": "2026-01-31T09:30:00.000Z"}
    visit.page.route(re.compile("/api/systems/support-snooze/items[?]"), lambda route: route.fulfill(json=answer))
    page = visit.open("/rooms?state=failed")
    nothing, clear = page.locator("#nothing"), page.get_by_role("button", name="Clear the filter")
    expect(nothing).to_contain_text("Press “Older” to continue.")
    expect(page.get_by_role("button", name="Older")).to_be_enabled()
    expect(clear).to_be_hidden()
    page.get_by_label("Search").fill("a")
    expect(clear).to_be_visible()


def test_one_item_is_retried(visit: Visit, clean: Servers) -> None:
    rooms = sample_data.rooms()
    page = visit.open("/rooms?state=failed")
    visit.press(f"Retry: {rooms['failed']}")
    expect(page.locator("#toasts")).to_contain_text(f"Retry queued for room {rooms['failed']}")  # goes after seconds
    expect(page.locator("#empty")).to_be_visible()
    (message,) = sent(clean, "support-snooze")
    assert message.args[0] == rooms["failed"]


def test_an_item_retried_by_another_person_is_reported(visit: Visit, queue: Queue, clean: Servers) -> None:
    rooms = sample_data.rooms()
    visit.expect_status(409)
    page = visit.open(f"/rooms/{rooms['stuck']}")

    def retry_first(route: Route) -> None:
        assert queue.post(f"/systems/support-snooze/items/{rooms['stuck']}/retry", {}).status == 202
        route.continue_()

    page.route("**/retry", retry_first)
    visit.press("Retry")
    expect(page.locator("#toasts p")).to_contain_text("in progress or not due")
    assert len(sent(clean, "support-snooze")) == 1


def test_all_matching_items_are_retried_after_a_count(visit: Visit, clean: Servers) -> None:
    loud = {str(make_room(server_now() - seconds(9), account_id=f"loud-{number}")) for number in range(3)}
    quiet = str(make_room(server_now() - seconds(9), account_id="quiet"))
    page = visit.open("/rooms?search=loud")
    eventually(lambda: set(visit.ids) == loud)
    visit.press("Dispatch all that match")
    expect(visit.dialog.get_by_role("heading")).to_have_text("Dispatch 3 rooms?")
    visit.press("Dispatch now", visit.dialog)
    expect(page.locator("#toasts")).to_contain_text("Dispatched 3 of 3")
    assert {message.args[0] for message in sent(clean, "support-snooze")} == loud
    visit.press("Clear the filter")
    visit.wait_for([quiet])


@pytest.mark.parametrize("page", ["reviews", "thumbnails"])
def test_the_other_systems_are_retried_alike(visit: Visit, clean: Servers, page: str) -> None:
    first, second = sample_data.agencies() if page == "reviews" else sample_data.sites()
    name = "review-request-pulse" if page == "reviews" else "stale-thumbnails"
    visit.open(f"/{page}")
    eventually(lambda: sorted(visit.ids) == sorted([first, second]))
    visit.press(f"Dispatch now: {first}")
    expect(visit.page.locator("#toasts")).to_contain_text(re.compile(rf"Dispatched \w+ {first}"))
    (message,) = sent(clean, name)
    assert first.split(":")[-1] in message.args


@pytest.mark.smoke
def test_a_scan_is_started_once(visit: Visit, clean: Servers) -> None:
    page = visit.open("/rooms")
    expect(page.get_by_role("button", name="Trigger now")).to_have_accessible_description("")
    visit.press("Trigger now")
    expect(page.locator("#toasts")).to_contain_text("Scan triggered: task ")
    begin_scans(sent(clean, "scans"))
    visit.expect_status(409)
    visit.press("Trigger now")
    expect(page.locator("#toasts")).to_contain_text("is running")
    assert [message.task for message in sent(clean, "scans")] == [sample_data.ROOM_SCAN]


def test_scans_that_could_not_be_read_are_read_with_the_next_event(visit: Visit) -> None:
    visit.expect_status(500)
    scans = "**/api/systems/support-snooze/scans*"
    failed: list[Route] = []

    def fail(route: Route) -> None:
        route.fulfill(status=500, body="null")
        failed.append(route)

    visit.page.route(scans, fail)
    page = visit.open("/rooms")
    eventually(lambda: page.evaluate("true") and bool(failed))
    page.unroute(scans)
    make_room(server_now())
    expect(page.get_by_text("No scan ran in the last 24 hours.")).to_be_visible()


def test_a_system_is_paused_with_a_reason_and_resumed(visit: Visit) -> None:
    page = visit.open("/rooms")
    visit.press("Pause …")
    visit.dialog.get_by_label("Reason").fill(f"Mails are down {SCRIPT}")
    visit.press("Pause", visit.dialog)
    expect(page.locator("#status")).to_have_text("Paused")
    expect(page.locator("#health")).to_contain_text(f"by someone on this machine: Mails are down {SCRIPT}")
    overview = visit.open("/")
    expect(card(overview, "Rooms")).to_contain_text("by someone on this machine: Mails are down")
    visit.open("/rooms")
    visit.press("Resume")
    expect(page.locator("#status")).not_to_have_text("Paused")
    assert pauses.paused() == {}
    visit.press("Pause …")  # without a reason
    visit.press("Pause", visit.dialog)
    expect(page.locator("#status")).to_have_text("Paused")
    (made,) = pauses.paused().values()
    assert made.reason is None


def test_scans_appear_as_they_end(visit: Visit) -> None:
    page = visit.open("/rooms")
    expect(page.get_by_text("No scan ran in the last 24 hours")).to_be_visible()
    sample_data.scans()
    expect(page.locator("#scans > tr")).to_have_count(3)
    expect(page.locator("#scans > tr").first).to_contain_text("Boom: the socket broke")


@pytest.mark.smoke
def test_a_room_leaves_the_list_when_it_is_opened(visit: Visit) -> None:
    make_room(server_now() - seconds(60))
    work = make_work(server_now)
    (item,) = scan(work)
    page = visit.open("/rooms?state=in-progress")
    page.evaluate("globalThis.isSamePage = true")
    visit.wait_for([item.args[0]])
    assert execute(work, item)["success"]
    visit.wait_for([])
    expect(page.get_by_role("heading", name="Nothing is in progress")).to_be_visible()
    assert page.evaluate("isSamePage")


def test_a_list_follows_its_items_when_their_number_stays_the_same(visit: Visit) -> None:
    work = make_work(server_now)
    make_room(server_now() - seconds(60))
    (first,) = scan(work)
    visit.open("/rooms?state=in-progress")
    visit.wait_for([first.args[0]])
    make_room(server_now() - seconds(30))
    (second,) = scan(work)
    assert execute(work, first)["success"]
    visit.wait_for([second.args[0]])


def test_foreign_markup_is_shown_as_text(visit: Visit, clean: Servers) -> None:
    rooms = sample_data.rooms(reason=SCRIPT)
    make_room(server_now() - seconds(5), account_id=SCRIPT)
    sample_data.scans(error=SCRIPT)
    worker_heartbeats.record(SCRIPT)
    page = visit.open("/rooms?state=failed")
    expect(visit.row(rooms["failed"])).to_contain_text(SCRIPT)
    expect(page.locator("#scans")).to_contain_text(SCRIPT)
    visit.row(rooms["failed"]).get_by_role("link").click()
    expect(page.get_by_role("region", name=rooms["failed"])).to_contain_text(SCRIPT)
    page.goto(f"{visit.origin}/rooms?state=due")
    expect(page.locator("#rows")).to_contain_text(SCRIPT)
    expect(visit.open("/").locator("#strip")).to_contain_text(SCRIPT)
    expect(visit.open("/schedule").locator("#entries")).to_contain_text(SCRIPT)
    assert page.locator("main img, main script").count() == 0


# The schedule


def test_the_schedule_shows_each_scan_and_the_leader(visit: Visit, clean: Servers) -> None:
    page = visit.open("/schedule")
    rows = page.locator("#entries > tr")
    expect(rows).to_have_count(5)
    expect(page.locator("#leader")).to_contain_text("no leader")
    sample_data.lead(clean.valkey.url)
    sample_data.scans()
    expect(page.locator("#leader")).to_contain_text("a-host:1")
    room = rows.filter(has_text=sample_data.ROOM_SCAN)
    expect(room).to_contain_text("1 error")
    expect(rows.filter(has_text="Thumbnails")).to_contain_text("every hour at :00")
    expect(rows.get_by_role("link")).to_have_text(["Rooms", "Reviews", "Thumbnails", "Messages", "Jobs"])
    expect(room.get_by_role("link")).to_have_attribute("href", "/rooms")
    room.get_by_role("button", name="Last 3 runs").click()
    expect(visit.dialog.locator("tbody tr")).to_have_count(3)
    expect(visit.dialog).to_contain_text("Boom: the socket broke")


SOME, ERRORS, PAUSED = "■", "\u00d7", "\u2013"


def test_runs_of_a_paused_system_are_shown_as_paused(visit: Visit, queue: Queue, clean: Servers) -> None:
    sample_data.lead(clean.valkey.url)
    sample_data.scans()
    page = visit.open("/schedule")
    room = page.locator("#entries > tr").filter(has_text=sample_data.ROOM_SCAN)
    marks = room.locator(".marks span")
    expect(marks).to_have_count(3)
    queue.post("/systems/support-snooze/pause", {})
    empty = {"found": 0, "claimed": 0, "enqueued": 0, "errors": 0, "duration_ms": 2, "paused": 1}
    scan_run.record(sample_data.ROOM_SCAN, empty, error=None, now=server_now() + seconds(1))
    expect(marks).to_have_text([SOME, SOME, ERRORS, PAUSED])
    expect(room.locator("[data-label='Last run'] p")).to_have_text("paused")
    expect(room.locator("[data-label='Next run']")).to_have_text("paused")


def test_each_scan_is_triggered_once(visit: Visit, clean: Servers) -> None:
    page = visit.open("/schedule")
    buttons = page.get_by_role("button", name="Trigger now")
    expect(buttons).to_have_count(5)
    for at in range(5):
        buttons.nth(at).click()
        expect(page.locator("#toasts p")).to_have_count(at + 1)
    messages = sent(clean, "scans")
    assert len({message.task for message in messages}) == 5
    begin_scans(messages)
    visit.expect_status(409)
    buttons.first.click()
    expect(page.locator("#toasts")).to_contain_text("is running")


def test_an_id_is_fully_shown_in_at_most_two_lines(visit: Visit, clean: Servers) -> None:
    lines = {"/rooms?state=failed": (sample_data.rooms()["failed"], 1), "/thumbnails": (sample_data.sites()[1], 2)}
    for path, (id, most) in lines.items():
        visit.open(path)
        height = visit.row(id).get_by_role("link").evaluate("(link) => link.getBoundingClientRect().height")
        assert height < 20 * most + 5, path  # px, 20 a line


def test_a_plus_shows_where_counting_stopped(visit: Visit) -> None:
    page = visit.open("/")
    counts = [(99_999, 100_000), (100_000, 100_000), (100_000, None), (None, None)]
    texts = page.evaluate(
        """async (counts) => {
          const { dueText } = await import("/static/systems.js");
          return counts.map(([due, most]) => dueText({ due, counted_to: most }));
        }""",
        counts,
    )
    assert texts == ["99,999", "100,000+", "100,000", "—"]


def test_a_late_page_of_scans_does_not_change_the_order(visit: Visit) -> None:
    held: list[Route] = []
    run = {"found": 3, "claimed": 2, "enqueued": 2, "errors": 0}
    for ago, took in ((20, 80), (10, 40)):
        scan_run.record(
            sample_data.ROOM_SCAN, {**run, "duration_ms": took}, error=None, now=server_now() - seconds(ago)
        )
    page = visit.open("/rooms")
    scans = page.locator("#scans > tr")
    expect(scans.first).to_be_visible()
    shown = scans.all_text_contents()
    page.route(re.compile(r"/scans\?.*sort=duration"), lambda route: held.append(route))
    visit.press("Slowest first")
    eventually(lambda: page.evaluate("true") and bool(held))
    with page.expect_response(re.compile(r"/scans\?.*sort=at")):
        visit.press("Newest first")
    expect(scans).to_have_text(shown)
    with page.expect_response(re.compile(r"/scans\?.*sort=duration")):
        held[0].continue_()
    page.evaluate("new Promise((resolve) => setTimeout(resolve))")
    assert scans.all_text_contents() == shown
