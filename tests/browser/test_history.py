"""How fast systems are, and their history: what the pages show, by pointer, by keyboard and as a table."""

from __future__ import annotations

from collections import Counter

import pytest
from playwright.sync_api import Page, expect

from beat_schedule import SYSTEMS
from models import mark
from models.database import server_now
from models.mark import Mark
from queue_manager.core.clock import minutes
from queue_manager.telemetry import counters, latency
from services import history
from services.message_queue.scripts import Scripts
from tests.browser.visit import Visit
from tests.web.queue_client import Queue

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("clean")]


def done(name: str, *durations_ms: int) -> None:
    """Count items that were done, and copy the history."""
    counts = Counter[str](done=len(durations_ms))
    for ms in durations_ms:
        latency.count(counts, due_ms=0, ready_ms=0, began_ms=0, ended_ms=ms)
    counters.items(name, counts)
    history.copy(SYSTEMS, now=server_now())


def chart(page: Page, title: str) -> None:
    """Bring a chart of the history into view."""
    page.locator("#past").scroll_into_view_if_needed()
    expect(page.get_by_role("img", name=title)).to_be_visible()


def test_a_card_leads_with_how_many_items_were_on_time(visit: Visit) -> None:
    done("support-snooze", *[100] * 99, 10_000)
    page = visit.open("/")
    rooms = page.get_by_role("article", name="Rooms").locator(".speed")
    expect(rooms).to_contain_text("99 %")
    expect(rooms).to_contain_text("Due to done, last hour, 100 measured · on time: due to done within 250 ms")
    expect(page.get_by_role("article", name="Reviews").locator(".speed")).to_contain_text("nothing was done")


@pytest.mark.smoke
def test_the_values_of_a_chart_are_read_with_the_keyboard_and_as_a_table(visit: Visit) -> None:
    done("support-snooze", 100, 100, 100)
    page = visit.open("/rooms")
    chart(page, "Throughput")
    throughput = page.locator("figure").filter(has=page.get_by_role("img", name="Throughput"))
    expect(throughput.locator(".readout")).to_have_text("3 done, 0 failed, 0 retried.")
    throughput.get_by_role("img").focus()
    page.keyboard.press("End")
    if "done —" in throughput.locator(".readout").inner_text():  # other ten minutes have begun
        page.keyboard.press("ArrowLeft")
    expect(throughput.locator(".readout")).to_contain_text("done 3, retried 0, failed 0")
    page.keyboard.press("Escape")
    expect(throughput.locator(".readout")).to_have_text("3 done, 0 failed, 0 retried.")
    throughput.get_by_text("Values as a table").click()
    expect(throughput.get_by_role("cell", name="3", exact=True)).to_have_count(1)


def test_a_range_is_chosen_and_kept_in_the_address(visit: Visit) -> None:
    page = visit.open("/rooms")
    chart(page, "Throughput, per 10 min")
    page.get_by_role("button", name="7 days").click()
    chart(page, "Throughput, per hour")
    expect(page.get_by_role("button", name="7 days")).to_have_attribute("aria-pressed", "true")
    page.reload()
    chart(page, "Throughput, per hour")


def test_marks_and_outages_stand_in_the_charts(visit: Visit) -> None:
    now = server_now()
    mark.add(Mark(kind="deployment", at=now, text="v1.4", by="ada"))
    mark.add(Mark(kind="outage", at=now - minutes(90), until=now - minutes(60), text="No scan ran"))
    page = visit.open("/rooms")
    chart(page, "Throughput")
    expect(page.locator("svg .mark.deployment")).to_have_count(2)  # in both charts
    expect(page.locator("svg .mark.outage")).to_have_count(2)
    page.get_by_text("Events in this range: 2").click()
    expect(page.locator(".events li").first).to_contain_text("Mark: v1.4, by ada")


def test_messages_and_jobs_have_charts_like_systems(visit: Visit, queue: Queue) -> None:
    done("QM/jobs", 100)
    queue.dead()
    with queue.redis() as client:
        Scripts(client, queue="browser").run("fold_counts", 1_000, counters.HISTORY_RETENTION_SECONDS)
    page = visit.open("/jobs#1h")
    chart(page, "Due to finished")
    expect(page.locator("#past .readout").first).to_have_text("1 done, 0 failed, 0 retried.")
    page = visit.open("/messages#1h")
    chart(page, "Added to acknowledged")
    expect(page.locator("#past .readout").first).to_have_text("0 done, 1 failed, 0 retried.")


def test_the_charts_fit_a_phone(visit: Visit) -> None:
    done("support-snooze", 100, 20_000)
    visit.page.set_viewport_size({"width": 320, "height": 700})
    for path in ("/rooms", "/"):
        page = visit.open(path)
        expect(page.locator("svg.chart").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
