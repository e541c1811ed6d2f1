"""Display preferences that a browser keeps, and the parts that are common to all pages."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from models.database import server_now
from tests.any_jobs import INVOICE, made
from tests.browser import sample_data
from tests.browser.visit import LOCAL_TIMES, Visit, Visiting
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.queue_client import Queue
from tests.web.web_process import forked_web

pytestmark = pytest.mark.browser

COLOUR_OF = """(banner, name) => {
  banner.className = `env ${name}`;
  return getComputedStyle(banner).backgroundColor;
}"""
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
DUE = datetime(2026, 1, 2, 17, 34, 5, tzinfo=UTC)


def open_display(page: Page) -> None:
    page.get_by_role("button", name=re.compile("times", re.IGNORECASE)).click()
    expect(page.get_by_role("dialog")).to_contain_text("Display and keys")


def test_colours_are_kept_for_all_pages(visit: Visit) -> None:
    page = visit.open("/")
    light = page.evaluate(BACKGROUND)
    open_display(page)
    visit.dialog.get_by_label("Colors").select_option("Dark")
    dark = page.evaluate(BACKGROUND)
    assert dark != light
    visit.open("/messages")
    assert page.evaluate(BACKGROUND) == dark


@pytest.mark.parametrize(
    ("choice", "shown", "button"),
    [
        ("UTC", "2 Jan 17:34:05", "Times in UTC"),
        ("Local time", "2 Jan 23:04:05", "Times in Asia/Colombo"),
        ("Relative, such as 5 min ago", r"\d+ d ago", "Relative times"),
    ],
)
def test_times_are_shown_as_chosen(
    visiting: Visiting, queue: Queue, clean: Servers, choice: str, shown: str, button: str
) -> None:
    room = make_room(DUE)
    visit = visiting(queue.web, timezone_id="Asia/Colombo")
    page = visit.open("/rooms?state=due")
    open_display(page)
    if choice != "UTC":  # which it is already
        with page.expect_event("load"):
            visit.dialog.get_by_label("Times").select_option(choice)
    expect(page.get_by_role("button", name=button, exact=True, include_hidden=True)).to_have_count(1)
    time = visit.row(str(room)).locator(f"time[datetime='{DUE:%Y-%m-%dT%H:%M:%S}.000Z']").first
    expect(time).to_have_text(re.compile(f"^{shown}$"))
    assert (time.get_attribute("title") or "").endswith("17:34:05.000 UTC")


@pytest.mark.parametrize(("month", "shown"), [(1, "10:00:00 Europe/Berlin"), (7, "11:00:00 Europe/Berlin")])
def test_local_times_have_the_offset_of_their_own_date(
    visiting: Visiting, queue: Queue, month: int, shown: str
) -> None:
    due = datetime(server_now().year + 1, month, 15, 9, tzinfo=UTC)
    job = made(INVOICE, at=due)
    visit = visiting(queue.web, timezone_id="Europe/Berlin", script=LOCAL_TIMES)
    visit.open("/jobs")
    visit.open_row(str(job["_id"]))
    expect(visit.dialog).to_contain_text(f"15 {due:%b %Y} {shown}")


def test_a_question_mark_shows_the_keys(visit: Visit) -> None:
    page = visit.open("/messages")
    page.keyboard.press("?")
    expect(visit.dialog).to_contain_text("Search this list")
    assert visit.wrongs("the display") == []
    page.keyboard.press("Escape")
    expect(visit.dialog).to_have_count(0)
    page.keyboard.press("/")
    page.keyboard.type("?")
    expect(page.get_by_label("Search payload, id, error")).to_have_value("?")
    expect(visit.dialog).to_have_count(0)


def test_the_browser_tab_counts_problems(visit: Visit, clean: Servers) -> None:
    sample_data.rooms()
    page = visit.open("/")
    count = page.get_by_role("region", name="Needs attention").get_by_role("listitem")
    expect(count).not_to_have_count(0)
    eventually(lambda: page.title() == f"({count.count()}) Overview · Queue Manager · test")


def test_the_browser_tab_counts_listed_items(visit: Visit, queue: Queue, clean: Servers) -> None:
    sample_data.everything(queue, clean.valkey.url)
    for path, title in {
        "/messages": "(1) Messages",
        "/messages/failed": "(1) Messages",
        "/rooms?state=failed": "(1) Rooms",
        "/jobs": "(1) Jobs",
        "/failures": "(4) Failures",
        "/audit": "Audit",
    }.items():
        page = visit.open(path)
        expect(page.locator("#rows > tr").first).to_be_visible()
        eventually(lambda page=page, title=title: page.title() == f"{title} · Queue Manager · test")


def test_a_card_shows_important_values_first_and_hides_zeros(visit: Visit, queue: Queue, clean: Servers) -> None:
    def statistics(name: str) -> Locator:
        return page.get_by_role("article", name=name).locator(".statistics dt")

    page = visit.open("/")
    expect(statistics("Rooms")).to_have_text(["Due now", "In progress", "Done / min"])
    sample_data.rooms()
    names = ["Due now", "In progress", "Done / min", "Oldest waiting", "Stuck", "Failed"]
    expect(statistics("Rooms")).to_have_text(names)
    expect(statistics("Thumbnails")).to_have_text(["Due now", "Done / min"])
    queue.post("/queue/pause", {"types": ["mail"]})
    queue.post("/jobs/pause", {"names": [INVOICE]})
    expect(statistics("Messages").filter(has_text="Paused types")).to_be_visible()
    expect(statistics("Jobs").filter(has_text="Paused names")).to_be_visible()
    queue.add("late")
    id = queue.take("&type=late")["id"]
    with queue.redis() as client:
        client.set("browser:overdue_requeue_lock", "a sweeper of an older service", ex=60)
        client.zadd("browser:deadlines", {id: 1})
    expect(statistics("Messages").filter(has_text="Overdue for")).to_be_visible()


def test_forced_colours_leave_states_and_choices_visible(visit: Visit, queue: Queue, clean: Servers) -> None:
    sample_data.jobs(queue)
    page = visit.open("/jobs")
    pill = page.locator("#rows .pill").first
    here = page.locator("nav [aria-current]")
    expect(pill).to_have_css("border-style", "none")
    page.emulate_media(forced_colors="active")
    expect(pill).to_have_css("border-style", "solid")
    expect(here).to_have_css("text-decoration-line", "underline")
    page.locator("#past").scroll_into_view_if_needed()
    marks = page.locator("#past .legend").first.locator("i")
    expect(marks).to_have_count(3)
    colours = marks.evaluate_all("marks => marks.map((mark) => getComputedStyle(mark).backgroundColor)")
    assert len({*colours}) == 3


def test_configured_environment_and_links_are_shown(visiting: Visiting, clean: Servers, tmp_path: Path) -> None:
    room = make_room(DUE)
    with forked_web(tmp_path, APP_ENV="staging", QM_ROOM_URL="https://example.com/rooms/{id}?from=queues") as process:
        visit = visiting(process)
        link = visit.open(f"/rooms/{room}").get_by_role("link", name="Open the room")
        expect(link).to_have_attribute("href", f"https://example.com/rooms/{room}?from=queues")
        for path in ("/", "/messages"):
            expect(visit.open(path).get_by_role("banner").first).to_contain_text("staging")
            assert visit.page.title().endswith(" · Queue Manager · staging")
        colours = [visit.page.locator(".env").evaluate(COLOUR_OF, name) for name in ("production", "staging", "other")]
        assert len({*colours}) == 3
        assert visit.wrongs("a page with its environment") == []
