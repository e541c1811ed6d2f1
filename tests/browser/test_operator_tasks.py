"""Tasks of an operator that no page alone is about; `docs/reference/dashboard.md` lists all, each with its test."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import expect

from models import scan_run
from models.database import server_now
from queue_manager.core.clock import hours, minutes, seconds
from tests.browser import sample_data
from tests.browser.conftest import empty_queue
from tests.browser.test_history import done
from tests.browser.visit import Visit, Visiting
from tests.e2e.commands import invoke
from tests.e2e.receivers import receiving_posts
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import execute, make_room, make_work, scan
from tests.web.credentials import OPERATOR, VIEWER, key
from tests.web.queue_client import Queue
from tests.web.test_limited_keys import CLERK, READER
from tests.web.web_process import shared_web

BOSS = key("boss", "the-key-of-a-boss-of-the-tests-0123456789", "operator")

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("clean")]


def ask(visit: Visit, id: str) -> Any:
    """Find an id from wherever the operator is; return the answer."""
    visit.page.get_by_label("Find any id").fill(id)
    visit.page.keyboard.press("Enter")
    return visit.page.locator("main").get_by_role("region").first


def test_the_page_of_a_room_explains_why_it_did_not_wake(visit: Visit) -> None:
    work = make_work(server_now)
    opened = str(make_room(server_now() - minutes(2)))
    execute(work, scan(work)[0])
    rooms = {
        str(make_room(server_now() + hours(24))): "Snoozed until ",
        str(make_room("tomorrow")): "snooze_time.time is malformed",
        opened: "Open since ",
        str(make_room(server_now() - minutes(1))): "Due since ",
    }
    visit.open("/jobs")
    for room, answer in rooms.items():
        expect(ask(visit, room)).to_contain_text(answer)
        assert visit.path == f"/rooms/{room}"


def test_the_slowest_scans_are_listed(visit: Visit) -> None:
    for ago, took in ((30, 40), (20, 900), (10, 200)):
        run = {"found": 1, "claimed": 1, "enqueued": 1, "errors": 0, "duration_ms": took}
        scan_run.record(sample_data.ROOM_SCAN, run, error=None, now=server_now() - seconds(ago))
    page = visit.open("/rooms")
    durations = page.locator("#scans td[data-label='Duration']")
    expect(durations).to_have_text(["200 ms", "900 ms", "40 ms"])
    visit.press("Slowest first")
    expect(durations).to_have_text(["900 ms", "200 ms", "40 ms"])
    visit.press("Newest first")
    expect(durations).to_have_text(["200 ms", "900 ms", "40 ms"])


def test_an_alert_is_sent_for_a_problem_of_the_overview(
    visiting: Visiting, tmp_path_factory: pytest.TempPathFactory
) -> None:
    told: list[Any] = []
    with receiving_posts(lambda _, body: told.append(json.loads(body))) as port:
        url = f"http://127.0.0.1:{port}/alerts"
        process = shared_web(tmp_path_factory, QM_ALERT_WEBHOOK_URL=url, QM_ALERT_AFTER_SECONDS="0")
        page = visiting(process).open("/")
        needed = page.get_by_role("region", name="Needs attention").get_by_role("listitem")
        expect(needed.filter(has_text="No beat is the leader")).to_be_visible()
        posted = eventually(lambda: told)
    assert ("beat", "no-leader") in [(one["system"], one["rule"]) for one in posted[0]["problems"]]


def test_the_page_of_a_message_shows_its_timeline(visit: Visit, queue: Queue) -> None:
    id = queue.add(type="mail", payload={"to": "ada"}, maxAttempts=2)
    for consumer in ("first", "second"):
        taken = queue.take(f"consumerId={consumer}")
        failed = {"lock_token": taken["lock_token"], "errorReason": f"{consumer} broke"}
        assert queue.post(f"/queue/message/{id}/nack", failed).status == 200
    visit.open("/messages/failed")
    expect(ask(visit, id)).to_contain_text("second broke")
    life = visit.page.locator("main ol").first
    for event in ("first", "first broke", "second", "second broke"):
        expect(life).to_contain_text(event)
    assert visit.path == f"/messages/{id}"


def test_the_latency_of_rooms_is_on_their_card(visit: Visit) -> None:
    done("support-snooze", *[2_000] * 20)
    page = visit.open("/")
    speed = page.get_by_role("article", name="Rooms").locator(".speed")
    expect(speed.locator("dt")).to_have_text(["On time", "p50", "p95", "p99"])
    expect(speed).to_contain_text("20 measured")


def test_the_metrics_are_read_with_a_browser(visit: Visit) -> None:
    done("support-snooze", 100, 100, 3_000)
    visit.expect_status(404)  # the icon, which no page names here
    shown = visit.open("/metrics").locator("body")
    for sample, value in {
        'item_due_to_done_seconds_bucket{le="0.125",system="support-snooze"}': 2,
        'item_due_to_done_seconds_bucket{le="+Inf",system="support-snooze"}': 3,
        'items_total{outcome="done",system="support-snooze"}': 3,
    }.items():
        expect(shown).to_contain_text(f"queue_manager_{sample} {value:.1f}")


def test_effects_of_a_command_appear_on_the_pages(visit: Visit) -> None:
    def command(*arguments: str) -> str:
        with ThreadPoolExecutor() as other_thread:  # this one has an event loop
            answer = other_thread.submit(invoke, *arguments).result()
        assert answer.returncode == 0
        return str(answer.stdout)

    page = visit.open("/rooms")
    expect(page.locator("#status")).not_to_be_empty()
    command("systems", "pause", "support-snooze", "--reason", "Mails are down")
    expect(page.locator("#status")).to_have_text("Paused")
    expect(page.locator("#health")).to_contain_text("Mails are down")
    row = visit.open("/audit").locator("#rows > tr")
    for words in ("command line", "pause", "Rooms", "Mails are down"):
        expect(row).to_contain_text(words)
    visit.open("/rooms")
    visit.press("Resume")
    expect(page.locator("#status")).not_to_have_text("Paused")
    assert "paused" not in command("systems", "status", "support-snooze").lower()


def test_the_holder_of_a_limited_key_sees_only_its_systems(
    visiting: Visiting, clean: Servers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    limited = empty_queue(clean, tmp_path_factory, QM_API_KEYS=json.dumps([CLERK, READER, BOSS]))
    room = str(make_room(server_now() + hours(1)))
    message = limited.post("/queue/message", {"type": "mail", "payload": 1}, X_API_KEY=BOSS["key"]).body["id"]
    clerk, reader = visiting(limited.web), visiting(limited.web)
    clerk.log_in(OPERATOR)
    reader.log_in(VIEWER)
    for visit, pages, cards, hidden in (
        (clerk, ["Overview", "Rooms", "Jobs", "Workers", "API"], ["Rooms", "Jobs"], message),
        (reader, ["Overview", "Messages", "Workers", "API"], ["Messages"], room),
    ):
        page = visit.open("/")
        expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(pages)
        for card in cards:
            expect(page.get_by_role("article", name=card)).to_be_visible()
        expect(page.locator("main article")).to_have_count(len(cards))
        page.get_by_label("Find any id").fill(hidden)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="No results")).to_be_visible()
    sample_data.workers(clean.valkey.url)
    for visit, does in ((clerk, sample_data.A_ROOM), (reader, "works for another system")):
        processes = visit.open("/workers").get_by_role("article", name="worker@a-host").get_by_role("table")
        expect(processes).to_contain_text(does)
    expect(reader.page.locator("main")).not_to_contain_text("snooze")
    expect(ask(clerk, room)).to_contain_text("Snoozed until ")
    expect(ask(reader, message)).to_contain_text("aiting")
