"""Latency and history of systems on the pages: by pointer, by keyboard and as a table."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime

import pytest
from playwright.sync_api import Page, expect

from beat_schedule import SYSTEMS
from models import history as stored
from models import mark
from models.database import server_now
from models.history import TEN_MINUTES, Bucket
from models.mark import ChartMark
from queue_manager.core.clock import hours, minutes
from queue_manager.core.redis_client import connect
from queue_manager.telemetry import counters, latency
from services import history
from services.message_queue.scripts import Scripts
from tests.browser.visit import LOCAL_TIMES, Visit, Visiting
from tests.real_servers import Servers
from tests.web.queue_client import Queue

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("clean")]


def done(name: str, *durations_ms: int) -> None:
    """Count items that were done, and copy the history."""
    counts = Counter[str](done=len(durations_ms))
    for ms in durations_ms:
        latency.count_all(counts, [(0, 0)], began_ms=0, ended_ms=ms)
    counters.items(name, counts)
    history.copy(SYSTEMS, now=server_now())


def chart(page: Page, title: str) -> None:
    """Bring a chart of the history into view."""
    page.locator("#past").scroll_into_view_if_needed()
    expect(page.get_by_role("img", name=title)).to_be_visible()


def test_a_card_shows_the_share_of_items_on_time_first(visit: Visit) -> None:
    done("support-snooze", *[100] * 99, 10_000)
    page = visit.open("/")
    rooms = page.get_by_role("article", name="Rooms").locator(".speed")
    expect(rooms).to_contain_text("99 %")
    expect(rooms).to_contain_text("Due to done, the last hour, 100 measured · on time: due to done within 250 ms")
    expect(page.get_by_role("article", name="Reviews").locator(".speed")).to_have_text(
        "Nothing was done in the last hour"
    )


@pytest.mark.smoke
def test_the_values_of_a_chart_are_read_with_the_keyboard_and_as_a_table(visit: Visit) -> None:
    done("support-snooze", 100, 100, 100)
    page = visit.open("/rooms#24h")
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


def test_the_values_of_a_chart_are_read_by_touch(visiting: Visiting, queue: Queue) -> None:
    visit = visiting(queue.web, has_touch=True)
    done("support-snooze", 100)
    page = visit.open("/rooms#24h")
    chart(page, "Throughput")
    throughput = page.locator("figure").filter(has=page.get_by_role("img", name="Throughput"))
    throughput.get_by_role("img").tap()
    expect(throughput.locator(".readout")).to_contain_text("done —, retried —, failed —")


def test_a_range_is_chosen_and_kept_in_the_address(visit: Visit) -> None:
    page = visit.open("/rooms")
    chart(page, "Throughput, per 10 min")
    for name, step in (
        ("1 h", "minute"),
        ("24 h", "10 min"),
        ("30 days", "6 h"),
        ("90 days", "day"),
        ("7 days", "hour"),
    ):
        page.get_by_role("button", name=name, exact=True).click()
        chart(page, f"Throughput, per {step}, UTC")
        expect(page.get_by_role("button", name=name, exact=True)).to_have_attribute("aria-pressed", "true")
    page.reload()
    chart(page, "Throughput, per hour")


def test_local_times_leave_days_those_of_utc(visiting: Visiting, queue: Queue) -> None:
    visit = visiting(queue.web, timezone_id="America/Los_Angeles", script=LOCAL_TIMES)
    with visit.page.expect_response("**/history?range=90d") as response:
        page = visit.open("/rooms#90d")
    first_day = datetime.fromisoformat(response.value.json()["begins_at"])
    chart(page, "Throughput, per day, UTC")
    throughput = page.locator("figure").filter(has=page.get_by_role("img", name="Throughput"))
    throughput.get_by_text("Values as a table").click()
    expect(throughput.get_by_role("columnheader").first).to_have_text("Time (UTC)")
    expect(throughput.get_by_role("rowheader").first).to_have_text(f"{first_day.day} {first_day:%b}")
    visit.press("7 days")
    chart(page, "Throughput, per hour, America/Los_Angeles")


def test_charts_have_axes_units_and_a_legend(visit: Visit) -> None:
    done("support-snooze", *[100] * 7, 3_000)
    page = visit.open("/rooms#1h")
    chart(page, "Throughput")
    throughput, latency = (page.locator("#past figure").nth(index) for index in range(2))
    expect(throughput.locator("figcaption")).to_have_text("Throughput per minute, UTCdoneretriedfailed")
    expect(throughput.locator(".axis.y span")).to_have_text(["0", "5", "10"])
    expect(throughput.locator(".axis.x span").first).to_have_text(re.compile(r"^\d\d:\d\d$"))
    expect(latency.locator("figcaption")).to_have_text("Due to done log scale, UTCp50p95p99")
    expect(latency.locator(".axis.y span")).to_have_text(["10 ms", "100 ms", "1 s", "10 s"])


def test_durations_beyond_the_longest_bucket_are_charted(visit: Visit) -> None:
    done("support-snooze", 5 * 3_600_000, 999)
    page = visit.open("/rooms#1h")
    chart(page, "Due to done")
    expect(page.locator("#past .readout").last).to_contain_text("p99 > 4 h")
    done("stale-thumbnails", 5 * 3_600_000)
    page = visit.open("/thumbnails#1h")
    chart(page, "Due to done")
    expect(page.locator("#past .axis.y").last.locator("span")).to_have_text(["4 h", "24 h"])
    expect(visit.open("/").get_by_role("article", name="Rooms").locator(".speed")).to_contain_text("p501 s")


def test_charts_of_a_new_system_start_with_its_first_hour(visit: Visit) -> None:
    done("support-snooze", 100)
    page = visit.open("/rooms")
    chart(page, "Throughput, per minute")
    expect(page.get_by_role("button", name="1 h", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(visit.open("/").get_by_role("img", name="Last hour")).to_have_count(5)
    labels = page.locator("#systems .axis.x").first.locator("span").all_inner_texts()
    assert len(labels) == 4
    assert {label[-1] for label in labels} == {"0"}  # each where a bar of ten minutes begins


def test_charts_of_an_older_system_show_a_day(visit: Visit) -> None:
    now = server_now()
    stored.store([Bucket(system="support-snooze", at=now - hours(5), length=TEN_MINUTES, counts={"done": 3})])
    done("support-snooze", 100)
    chart(visit.open("/rooms"), "Throughput, per 10 min")
    expect(visit.open("/").get_by_role("img", name="Last 6 hours")).to_have_count(5)


def test_charts_survive_the_loss_of_redis(visit: Visit, clean: Servers) -> None:
    done("support-snooze", 100, 100)
    with connect(clean.valkey.url) as client:
        client.flushall()
    page = visit.open("/rooms#24h")
    chart(page, "Throughput")
    expect(page.locator("#past .readout").first).to_have_text("2 done, 0 failed, 0 retried.")


def test_marks_and_outages_are_shown_in_charts(visit: Visit) -> None:
    now = server_now()
    mark.add(ChartMark(kind="deployment", at=now, text="v1.4", by="ada"))
    mark.add(ChartMark(kind="outage", at=now - minutes(90), until=now - minutes(60), text="No scan ran"))
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
    chart(page, "Duration")  # of none: it is not known which of them are measured
    expect(page.locator("#past .readout").first).to_have_text("0 done, 1 failed, 0 retried.")


def test_the_charts_fit_a_phone(visit: Visit) -> None:
    done("support-snooze", 100, 20_000)
    visit.page.set_viewport_size({"width": 320, "height": 700})
    for path in ("/rooms", "/"):
        page = visit.open(path)
        expect(page.locator("svg.chart").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
