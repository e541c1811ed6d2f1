"""The workers in a browser: what each process does, queues without a worker, and changes without a reload."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from queue_manager.core.redis_client import connect
from queue_manager.telemetry import worker_heartbeats
from queue_manager.telemetry.worker_heartbeats import MAX_PROCESSES_SHOWN, Activity, PoolProcess, RunningTask
from tests.browser import sample_data
from tests.browser.visit import NARROW, Visit
from tests.real_servers import Servers

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("clean")]
SCRIPT = "<img src=x onerror=alert(1)>"


def card(page: Page, name: str = sample_data.WORKER) -> Locator:
    return page.get_by_role("article", name=name)


def figure(page: Page, name: str) -> Locator:
    return card(page).locator("dl.facts > div").filter(has=page.locator(f"dt:text-is('{name}')")).locator("dd")


def process(page: Page, pid: int) -> Locator:
    return card(page).get_by_role("row").filter(has=page.get_by_role("rowheader", name=str(pid)))


@pytest.mark.smoke
def test_a_worker_shows_what_each_process_does(visit: Visit, clean: Servers) -> None:
    sample_data.workers(clean.valkey.url)
    page = visit.open("/workers")
    for name, value in (
        ("Queues", "scans, support-snooze"),
        ("Pool", "prefork, 4"),
        ("Busy", "3 of 4"),
        ("Done / min", "1,234"),
        ("Memory", "289 MB"),
        ("Version", worker_heartbeats.OWN_RELEASE),
        ("Last seen", "now"),
    ):
        expect(figure(page, name)).to_have_text(value)
    expect(process(page, 101)).to_contain_text("5 min")
    expect(process(page, 102).get_by_role("link", name="1,000 items")).to_have_attribute("href", "/rooms")
    expect(process(page, 103)).to_contain_text("billing.send_mail")
    expect(process(page, 104)).to_contain_text("idle")
    expect(card(page).get_by_role("link", name="support-snooze")).to_have_attribute("href", "/rooms")
    expect(card(page).get_by_role("link", name="scans")).to_have_count(0)
    process(page, 101).get_by_role("link", name=sample_data.A_ROOM).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Room {sample_data.A_ROOM}")
    assert visit.path == f"/rooms/{sample_data.A_ROOM}"


def test_a_worker_that_takes_no_items_shows_the_reason(visit: Visit, clean: Servers) -> None:
    sample_data.workers(clean.valkey.url, paused=f"MongoDB does not answer {SCRIPT}")
    page = visit.open("/workers")
    expect(card(page)).to_contain_text("Takes no items")
    expect(card(page)).to_contain_text(f"MongoDB does not answer {SCRIPT}")
    assert page.locator("main img").count() == 0


def test_queues_without_a_worker_are_named(visit: Visit, clean: Servers) -> None:
    page = visit.open("/workers")
    expect(page.get_by_role("heading", name="No workers are online")).to_be_visible()
    problem = page.get_by_role("region", name="Queues without a worker")
    expect(problem).to_contain_text("support-snooze (Rooms)")
    expect(problem.get_by_role("link", name="Rooms")).to_have_attribute("href", "/rooms")
    sample_data.workers(clean.valkey.url)
    expect(card(page)).to_be_visible()
    expect(problem).to_contain_text("stale-thumbnails (Thumbnails)")
    expect(problem).not_to_contain_text("support-snooze")


def test_the_page_follows_a_worker_without_a_reload(visit: Visit, clean: Servers) -> None:
    sample_data.workers(clean.valkey.url)
    page = visit.open("/workers")
    page.evaluate("globalThis.isSamePage = true")
    expect(process(page, 101)).to_contain_text(sample_data.A_ROOM)
    idle = Activity(pool="threads", size=9, busy=0, done_per_minute=0, processes=[PoolProcess(pid=101)])
    sample_data.heartbeat(clean.valkey.url, idle, "scans")
    expect(figure(page, "Pool")).to_have_text("threads, 9")
    expect(process(page, 101)).to_contain_text("idle")
    with connect(clean.valkey.url) as client:
        client.delete(worker_heartbeats.WORKERS_KEY)
    expect(page.get_by_role("heading", name="No workers are online")).to_be_visible()
    assert page.evaluate("isSamePage")


def test_many_processes_and_long_names_fit_a_phone(visit: Visit, clean: Servers) -> None:
    task = RunningTask(task=SCRIPT + "x" * 200, id="t", item="9" * 500, elapsed_ms=0)
    processes = [PoolProcess(pid=pid, running=[task]) for pid in range(1, MAX_PROCESSES_SHOWN + 1)]
    many = Activity(pool="prefork", size=64, busy=64, done_per_minute=10**9, processes=processes)
    sample_data.heartbeat(clean.valkey.url, many, *(f"queue-{number}" for number in range(50)))
    visit.page.set_viewport_size(NARROW)
    page = visit.open("/workers")
    expect(card(page).get_by_role("row")).to_have_count(MAX_PROCESSES_SHOWN + 1)
    assert not visit.is_wider_than_screen()
    assert page.locator("main img").count() == 0
