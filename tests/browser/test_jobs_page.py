"""The page of jobs: what it shows, and the effect of each action, checked by the API."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Locator, Route, expect

from models import job as stored
from models.database import server_now
from models.job import JobState
from queue_manager.core.clock import seconds
from queue_manager.telemetry import counters, latency
from services.job_queues import JOBS_INITIATOR, adopt, jobs
from tests.any_jobs import INVOICE, REPORT, made
from tests.browser import sample_data
from tests.browser.visit import NARROW, Visit
from tests.eventually import eventually
from tests.foreign_jobs import foreign_job
from tests.job_lab import end_job
from tests.web.queue_client import Queue

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("clean")]

IS_SCROLLED = "sheet => sheet.scrollHeight > sheet.clientHeight"
SCRIPT = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def job(queue: Queue, id: str) -> Any:
    return queue.get(f"/jobs/{id}").body["job"]


def ids(queue: Queue) -> list[str]:
    return [one["_id"] for one in queue.get("/jobs").body["jobs"]]


def of_name(visit: Visit, name: str) -> Locator:
    return visit.page.locator("#queues > tr").filter(has_text=name)


def open_job(visit: Visit, id: str) -> None:
    visit.open_row(id)
    expect(visit.dialog).to_contain_text(id)


# Finding


def test_adopted_job_is_opened_and_canceled_by_its_text_id(visit: Visit, queue: Queue) -> None:
    id = "a b é%2F?#"
    stored.jobs().insert_one(foreign_job(INVOICE, "failure", server_now(), id=id))
    adopt(is_dry_run=False)
    visit.open("/jobs")
    visit.wait_for([id])
    open_job(visit, id)
    visit.press("Cancel the job", visit.dialog)
    expect(visit.row(id)).to_contain_text("canceled")


def test_jobs_are_visible_below_many_names(visit: Visit, queue: Queue) -> None:
    names = [*(f"name-{number:03}" for number in range(100)), "n" * 128]
    stored.jobs().insert_many(
        [{**foreign_job(name, "failure", server_now(), id=name), "attempts": 1} for name in names]
    )
    page = visit.open("/jobs")
    expect(page.locator("#queues > tr")).to_have_count(len(names) + 4)
    expect(page.locator("#filter")).to_be_in_viewport()
    last = page.get_by_role("table", name="Jobs by name").get_by_role("link", name="test.send_invoice", exact=True)
    last.focus()
    expect(last).to_be_in_viewport()
    visit.press("Run a job")
    assert visit.dialog.evaluate("dialog => dialog.scrollWidth <= dialog.clientWidth")
    visit.press("Cancel", visit.dialog)
    sheet = page.locator("#names .sheet")
    assert sheet.evaluate(IS_SCROLLED)
    page.emulate_media(media="print")
    assert not sheet.evaluate(IS_SCROLLED)
    expect(page.get_by_role("navigation", name="Pages")).to_be_hidden()


def test_job_of_another_program_with_odd_fields_is_shown(visit: Visit, queue: Queue) -> None:
    stored.jobs().insert_one({"_id": "odd", "attempts": 0, "created": "yesterday", "history": "none"})
    stored.jobs().insert_one({**foreign_job(INVOICE, "failure", server_now(), id="huge"), "attempts": 2**60})
    id = sample_data.make_job(queue, INVOICE)
    visit.open("/jobs")
    visit.wait_for([id, "odd", "huge"])
    expect(visit.row("huge")).to_contain_text(str(2**60))
    open_job(visit, "odd")
    expect(visit.dialog.get_by_role("button")).to_have_text(["Copy id", "Copy arguments", "Close"])


def test_actions_of_an_open_job_follow_its_state(visit: Visit, queue: Queue) -> None:
    id = sample_data.make_job(queue, INVOICE)
    visit.open("/jobs")
    visit.wait_for([id])
    open_job(visit, id)
    expect(visit.dialog.get_by_role("button", name="Cancel the job")).to_be_visible()
    visit.dialog.get_by_role("button", name="Run now").focus()
    end_job(id, JobState.SUCCESS)
    expect(visit.dialog.get_by_role("button")).to_contain_text(["Close", "Delete …", "Run again"])
    expect(visit.dialog.get_by_role("button", name="Cancel the job")).to_have_count(0)
    assert visit.dialog.evaluate("dialog => dialog.contains(document.activeElement)")


def test_an_open_job_keeps_the_focus_and_shows_that_it_was_deleted(visit: Visit, queue: Queue) -> None:
    visit.expect_status(404)
    id = sample_data.make_job(queue, INVOICE)
    end_job(id, JobState.FAILURE, error="x" * 400)
    visit.open("/jobs")
    visit.wait_for([id])
    open_job(visit, id)
    error = visit.dialog.get_by_label("Last error")
    error.focus()
    queue.post(f"/jobs/{id}/reschedule", {"priority": 77})
    expect(visit.dialog).to_contain_text("77")
    expect(error).to_be_focused()
    visit.press("Reschedule …", visit.dialog)
    expect(visit.dialog.get_by_label("Priority")).to_have_value("77")
    visit.press("Cancel", visit.dialog)
    open_job(visit, id)
    queue.delete(f"/jobs/{id}")
    expect(visit.dialog).to_contain_text("It no longer exists.")
    expect(visit.dialog.locator("menu")).to_have_text("Close")


def test_a_double_click_opens_one_dialog(visit: Visit, queue: Queue) -> None:
    id = sample_data.make_job(queue, INVOICE)
    page = visit.open("/jobs")
    visit.row(id).get_by_role("link").dblclick()
    expect(visit.dialog).to_contain_text(id)
    page.keyboard.press("Escape")
    expect(visit.dialog).to_have_count(0)


def test_listed_and_executing_jobs_link_to_their_pages(visit: Visit, queue: Queue) -> None:
    id = sample_data.make_job(queue, INVOICE, state=JobState.EXECUTING)
    visit.open("/jobs")
    expect(visit.row(id).get_by_role("link")).to_have_attribute("href", f"/jobs/{id}")
    running = of_name(visit, INVOICE).get_by_role("link", name=id[-6:])
    expect(running).to_have_attribute("href", f"/jobs/{id}")
    running.click()
    expect(visit.dialog).to_contain_text(id)
    assert visit.path == "/jobs"


def test_repeating_job_shows_its_repetition(visit: Visit, queue: Queue) -> None:
    often, daily = (
        sample_data.make_job(queue, every_seconds=5400),
        sample_data.make_job(queue, REPORT, cron="0 3 * * *"),
    )
    visit.open("/jobs")
    open_job(visit, often)
    expect(visit.dialog).to_contain_text("every 5,400 s")
    visit.page.keyboard.press("Escape")
    open_job(visit, daily)
    expect(visit.dialog).to_contain_text("0 3 * * *")


def test_each_name_has_its_counts_and_executing_job(visit: Visit, queue: Queue) -> None:
    jobs = sample_data.jobs(queue)
    page = visit.open("/jobs")
    visit.wait_for(list(jobs.values())[::-1])
    expect(of_name(visit, REPORT)).to_contain_text(jobs[JobState.EXECUTING][-6:])
    of_name(visit, INVOICE).get_by_role("link", name="1 canceled").click()
    visit.wait_for([jobs[JobState.CANCELED]])
    assert visit.path == f"/jobs?name={INVOICE}&state=canceled"
    page.reload()
    visit.wait_for([jobs[JobState.CANCELED]])
    page.get_by_label("State").select_option("pending")
    visit.wait_for([jobs[JobState.PENDING]])
    page.go_back()
    visit.wait_for([jobs[JobState.CANCELED]])


def test_names_and_first_rows_do_not_wait_for_the_counts(visit: Visit, queue: Queue) -> None:
    id = sample_data.make_job(queue, INVOICE)
    held: list[Route] = []
    visit.page.route("**/api/jobs/status", lambda route: held.append(route))
    visit.open("/jobs")
    expect(visit.row(id)).to_be_visible()
    expect(of_name(visit, INVOICE).locator("[data-label='Pending']")).to_have_text("…")
    eventually(lambda: held)
    held.pop().continue_()
    expect(of_name(visit, INVOICE).locator("[data-label='Pending']")).to_have_text("1")
    visit.page.unroute_all()


@pytest.mark.parametrize(("status", "rest_ms"), [(503, 2_000), (200, 10_000)])
def test_after_a_slow_reading_the_list_rests_for_ten_seconds_and_less_after_an_error(
    status: int, rest_ms: int, visit: Visit, queue: Queue
) -> None:
    held: list[Route] = []
    page = visit.page
    if status == 503:
        visit.expect_status(503)

    def is_held_after(ms: int) -> bool:
        page.clock.run_for(ms)
        page.evaluate("1")  # a call to the browser lets requests be noted
        return bool(held)

    page.clock.install()
    visit.open("/jobs")
    expect(page.locator("#state")).to_have_text("Live")
    page.clock.pause_at(server_now() + seconds(2))  # the time of the page is ours; too little for a new connection
    page.route(re.compile(r"/api/jobs\?"), lambda route: held.append(route))
    id = sample_data.make_job(queue, INVOICE)
    eventually(lambda: is_held_after(100))
    sample_data.make_job(queue, INVOICE)  # the list that is being read is older
    page.clock.run_for(4_000)
    if status == 200:
        held.pop().continue_()
        expect(visit.row(id)).to_be_visible()
        assert not is_held_after(rest_ms - 500)
        page.clock.run_for(1_000)
    else:
        held.pop().fulfill(status=status, json={"message": "MongoDB does not answer"})
        expect(page.get_by_text("MongoDB does not answer")).to_be_visible()
        page.clock.run_for(rest_ms)
    eventually(lambda: is_held_after(0))
    page.unroute_all()


def test_the_counts_are_read_again_after_a_response_that_is_malformed(visit: Visit, queue: Queue) -> None:
    sample_data.make_job(queue, INVOICE)
    page, counts = visit.page, "**/api/jobs/status"
    pending = of_name(visit, INVOICE).locator("[data-label='Pending']")
    visit.expect("error: Cannot read properties of undefined")
    visit.open("/jobs")
    expect(page.locator("#state")).to_have_text("Live")
    expect(pending).to_have_text("1")
    page.route(counts, lambda route: route.fulfill(json={}))
    with page.expect_event("response", lambda response: response.url.endswith("/api/jobs/status")):
        sample_data.make_job(queue, INVOICE)
    page.unroute(counts)
    expect(pending).to_have_text("2")


@pytest.mark.parametrize(("pending", "is_repeated"), [(10_000, False), (10_001, True)])
def test_the_counts_are_read_again_without_an_event_only_if_they_may_be_old(
    pending: int, is_repeated: bool, visit: Visit, queue: Queue
) -> None:
    sample_data.make_job(queue, INVOICE)
    answer = queue.get("/jobs/status").body
    for one in answer["queues"]:
        if one["name"] == INVOICE:
            one["states"] = {"pending": pending}
    page, requests = visit.page, list[str]()

    def read_in(ms: int) -> list[str]:
        """Return which of these the page requests in this time of its clock: a new connection requests both."""
        requests.clear()
        page.clock.run_for(ms)
        page.evaluate("1")  # a call to the browser lets requests be noted
        return [path for path in requests if path in ("/api/jobs", "/api/jobs/status")]

    page.clock.install()
    page.on("request", lambda request: requests.append(urlsplit(request.url).path))
    page.route("**/api/jobs/status", lambda route: route.fulfill(json=answer))
    visit.open("/jobs")
    expect(page.locator("#state")).to_have_text("Live")
    expect(of_name(visit, INVOICE).locator("[data-label='Pending']")).to_have_text(f"{pending:,}")
    page.clock.pause_at(server_now() + seconds(2))  # the time of the page is ours; too little for a new connection
    eventually(lambda: not read_in(1_000))  # the requests of the start are over
    if is_repeated:
        assert eventually(lambda: read_in(100)) == ["/api/jobs/status"]
    else:
        assert not any(read_in(1_000) for _ in range(8))
    page.unroute_all()


def test_each_name_has_how_long_its_jobs_wait_and_run(visit: Visit, queue: Queue) -> None:
    sample_data.make_job(queue, INVOICE)
    sample_data.make_job(queue, REPORT)
    counts = Counter[str](done=1)
    latency.count_all(counts, [(0, 0)], began_ms=5 * 3_600_000, ended_ms=5 * 3_600_000 + 1_000)
    counters.items_by_hour(f"{JOBS_INITIATOR}/{INVOICE}", counts)
    visit.open("/jobs")
    for name, wait, run in ((INVOICE, "> 4 h", "980 ms"), (REPORT, "—", "—")):
        expect(of_name(visit, name).locator("[data-label='Wait, p95']")).to_have_text(wait)
        expect(of_name(visit, name).locator("[data-label='Run, p95']")).to_have_text(run)
    found = queue.get("/jobs/latency").body["names"][INVOICE]
    assert (found["run"]["count"], found["wait"]["p99_ms"]) == (1, 14_400_000)


def test_arguments_are_searched_and_columns_sort(visit: Visit, queue: Queue) -> None:
    ada, bob = sample_data.make_job(queue, INVOICE, "ada", priority=1), sample_data.make_job(queue, INVOICE, "bob")
    page = visit.open("/jobs")
    visit.wait_for([bob, ada])
    visit.press("Priority")
    visit.wait_for([ada, bob])
    page.get_by_label("Search").fill("bob")
    visit.wait_for([bob])


def test_rows_are_short_on_a_phone_and_show_all_values(visit: Visit, queue: Queue) -> None:
    id = sample_data.make_job(queue, INVOICE, 7)
    visit.page.set_viewport_size(NARROW)
    visit.open("/jobs")
    visit.wait_for([id])
    for row in (visit.row(id), of_name(visit, INVOICE)):
        assert row.evaluate("row => row.getBoundingClientRect().height") < 165  # px
    cells = visit.row(id).locator("th, td")
    assert [cells.nth(index).is_visible() for index in range(cells.count())] == [True] * 9
    assert not visit.is_wider_than_screen()


def test_pages_follow_each_other_both_ways(visit: Visit, queue: Queue) -> None:
    made = [sample_data.make_job(queue, INVOICE, number) for number in range(60)][::-1]
    visit.open("/jobs")
    visit.wait_for(made[:50])
    visit.press("Older")
    visit.wait_for(made[50:])
    expect(visit.page.get_by_role("button", name="Older")).to_be_disabled()
    visit.press("Newer")
    visit.wait_for(made[:50])


# Acting


@pytest.mark.smoke
def test_a_job_is_stored(visit: Visit, queue: Queue) -> None:
    page = visit.open("/jobs")
    expect(page.locator("#queues > tr").first).to_be_visible()
    visit.press("Run a job")
    visit.dialog.get_by_label("Name", exact=True).select_option(REPORT)
    visit.dialog.get_by_label("Arguments").fill("[2026, 12345678901234567]")
    visit.dialog.get_by_label("Or after this many seconds").fill("3600")
    visit.dialog.get_by_label("Priority").fill("5")
    visit.press("Run", visit.dialog)
    expect(visit.dialog).to_have_count(0)
    (id,) = ids(queue)
    stored = job(queue, id)
    assert (stored["name"], stored["arguments"], stored["priority"]) == (REPORT, [2026, 12345678901234567], 5)
    assert (stored["state"], stored["due"] > stored["created"]) == ("pending", True)
    visit.wait_for([id])
    expect(visit.row(id)).to_contain_text("12345678901234567")


def test_errors_are_shown_next_to_their_field(visit: Visit, queue: Queue) -> None:
    page = visit.open("/jobs")
    expect(page.locator("#queues > tr").first).to_be_visible()
    visit.press("Run a job")
    visit.expect_status(422)
    for label, wrong, right in (
        ("Arguments, as a JSON list", "[", "[1]"),
        ("Arguments, as a JSON list", "{}", "[1]"),
        ("Or after this many seconds", "soon", "1"),
        ("Priority", "1000", "1"),
    ):
        field = visit.dialog.get_by_label(label)
        field.fill(wrong)
        visit.press("Run", visit.dialog)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_have_accessible_description(re.compile("must be", re.IGNORECASE))
        field.fill(right)
    assert ids(queue) == []
    visit.press("Run", visit.dialog)
    expect(visit.dialog).to_have_count(0)
    assert len(ids(queue)) == 1


@pytest.mark.parametrize(
    ("state", "button", "after"),
    [
        (JobState.PENDING, "Cancel the job", "canceled"),
        (JobState.PENDING, "Run now", "pending"),
        (JobState.FAILURE, "Retry now", "pending"),
        (JobState.SUCCESS, "Run again", "pending"),
    ],
)
def test_a_job_is_canceled_or_retried(visit: Visit, queue: Queue, state: JobState, button: str, after: str) -> None:
    id = sample_data.make_job(queue, INVOICE, 1, state=state)
    visit.open("/jobs")
    open_job(visit, id)
    visit.press(button, visit.dialog)
    expect(visit.row(id)).to_contain_text(after)
    assert job(queue, id)["state"] == after


def test_a_failed_job_that_succeeded_meanwhile_is_not_run_again(visit: Visit, queue: Queue) -> None:
    visit.expect_status(409)
    id = sample_data.make_job(queue, INVOICE, state=JobState.FAILURE)
    page = visit.open("/jobs")
    open_job(visit, id)

    def succeed_before(route: Route) -> None:
        end_job(id, JobState.SUCCESS)
        route.continue_()

    page.route(f"**/jobs/{id}/retry", succeed_before)
    visit.press("Retry now", visit.dialog)
    expect(page.locator("#toasts")).to_contain_text("is success and was to be retried only if failure")
    assert job(queue, id)["state"] == "success"


def test_a_job_is_rescheduled(visit: Visit, queue: Queue) -> None:
    id = sample_data.make_job(queue, INVOICE, 1)
    visit.open("/jobs")
    open_job(visit, id)
    visit.press("Reschedule …", visit.dialog)
    visit.dialog.get_by_label("At, in UTC").fill("2035-01-31T09:30:00")
    visit.dialog.get_by_label("Priority").fill("-7")
    visit.press("Reschedule", visit.dialog)
    expect(visit.row(id)).to_contain_text("-7")
    assert (job(queue, id)["due"], job(queue, id)["priority"]) == ("2035-01-31T09:30:00.000Z", -7)


def test_rescheduling_without_a_time_or_another_priority_changes_nothing(visit: Visit, queue: Queue) -> None:
    id = sample_data.make_job(queue, INVOICE, 1)
    page = visit.open("/jobs")
    before = job(queue, id)
    open_job(visit, id)
    visit.press("Reschedule …", visit.dialog)
    visit.press("Reschedule", visit.dialog)
    expect(page.locator("#toasts")).to_have_text("Nothing was changed")
    assert job(queue, id) == before


def test_rescheduling_keeps_a_priority_that_was_changed_meanwhile(visit: Visit, queue: Queue) -> None:
    id = sample_data.make_job(queue, INVOICE, 1)
    visit.open("/jobs")
    open_job(visit, id)
    visit.press("Reschedule …", visit.dialog)
    queue.post(f"/jobs/{id}/reschedule", {"priority": 7})
    visit.dialog.get_by_label("At, in UTC").fill("2035-01-31T09:30:00")
    visit.press("Reschedule", visit.dialog)
    expect(visit.row(id)).to_contain_text("2035")
    assert job(queue, id)["priority"] == 7


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.FAILURE, JobState.SUCCESS, JobState.CANCELED])
def test_a_job_is_removed_after_a_confirmation(visit: Visit, queue: Queue, state: JobState) -> None:
    id, other = (sample_data.make_job(queue, INVOICE, number, state=state) for number in range(2))
    visit.open("/jobs")
    open_job(visit, id)
    visit.press("Delete …", visit.dialog)
    expect(visit.dialog).to_contain_text(id)
    visit.press("Cancel", visit.dialog)
    assert set(ids(queue)) == {id, other}
    open_job(visit, id)
    visit.press("Delete …", visit.dialog)
    visit.press("Delete", visit.dialog)
    visit.wait_for([other])
    assert ids(queue) == [other]


def test_an_executing_job_is_stopped(visit: Visit, queue: Queue) -> None:
    id = sample_data.make_job(queue, INVOICE, 1, state=JobState.EXECUTING)
    visit.open("/jobs")
    open_job(visit, id)
    expect(visit.dialog.locator("menu button")).to_have_text(["Close", "Cancel the job"])
    visit.press("Cancel the job", visit.dialog)
    expect(visit.page.locator("#toasts")).to_contain_text("Asked to stop")
    assert job(queue, id)["claim"]["canceled_at"]
    open_job(visit, id)
    expect(visit.dialog).to_contain_text("Asked to stop, killed in")


def test_only_an_executing_job_shows_its_progress(visit: Visit, queue: Queue) -> None:
    ended = sample_data.make_job(queue, REPORT, state=JobState.SUCCESS)
    executing = sample_data.make_job(queue, INVOICE, state=JobState.EXECUTING)
    stored.jobs().update_many({}, {"$set": {"progress": {"percent": 90, "note": "month 10"}}})
    visit.open("/jobs")
    open_job(visit, executing)
    expect(visit.dialog.get_by_role("progressbar")).to_be_visible()
    visit.press("Close", visit.dialog)
    open_job(visit, ended)
    expect(visit.dialog.get_by_role("progressbar")).to_have_count(0)


def test_the_id_and_the_arguments_are_copied(visit: Visit, queue: Queue) -> None:
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    id = sample_data.make_job(queue, INVOICE, 7)
    page = visit.open("/jobs")
    open_job(visit, id)
    for button, text in (("Copy id", id), ("Copy arguments", "[\n  7\n]")):
        visit.press(button)
        expect(page.get_by_text(f"Copied the {button.removeprefix('Copy ')}")).to_be_attached()
        assert page.evaluate("navigator.clipboard.readText()") == text


def test_a_name_is_paused_and_resumed(visit: Visit, queue: Queue) -> None:
    def about() -> Any:
        (found,) = [one for one in queue.get("/jobs/status").body["queues"] if one["name"] == REPORT]
        return found

    visit.open("/jobs")
    visit.press(f"Pause …: {REPORT}")
    visit.dialog.get_by_label("Reason").fill("a refund runs")
    visit.press("Pause", visit.dialog)
    expect(of_name(visit, REPORT).get_by_text("paused", exact=True)).to_be_visible()
    expect(of_name(visit, REPORT)).to_contain_text("by someone on this machine: a refund runs")
    assert (about()["is_paused"], about()["pause"]["reason"]) == (True, "a refund runs")
    visit.press(f"Resume: {REPORT}")
    expect(of_name(visit, REPORT).get_by_text("paused", exact=True)).to_have_count(0)
    assert (about()["is_paused"], about()["pause"]) == (False, None)


def test_jobs_of_a_name_and_state_are_cleared_after_a_count(visit: Visit, queue: Queue) -> None:
    for _ in range(2):
        sample_data.make_job(queue, INVOICE, 1, state=JobState.SUCCESS)
    left = [sample_data.make_job(queue, REPORT, 1, state=JobState.SUCCESS), sample_data.make_job(queue, INVOICE, 1)]
    visit.open("/jobs")
    visit.wait_for(ids(queue))
    assert visit.page.locator("#filter #clear").count() == 0
    visit.press("Delete jobs …")
    visit.dialog.get_by_label("Name", exact=True).select_option(INVOICE)
    visit.dialog.get_by_label("success").check()
    visit.press("Continue …", visit.dialog)
    expect(visit.dialog.get_by_role("heading")).to_have_text(f"Delete 2 jobs of {INVOICE}?")
    expect(visit.dialog.get_by_role("textbox")).to_have_count(0)
    visit.press("Delete", visit.dialog)
    expect(visit.page.locator("#toasts p")).to_have_text("2 jobs deleted. Undo")
    visit.wait_for(left[::-1])
    expect(visit.page.locator("#where")).to_have_text("2 of 2")
    assert ids(queue) == left[::-1]


def test_a_deletion_that_was_canceled_during_its_count_asks_nothing(visit: Visit, queue: Queue) -> None:
    sample_data.make_job(queue, INVOICE, 1)
    held: list[Route] = []
    page = visit.open("/jobs")
    page.route("**/api/jobs/clear", lambda route: held.append(route))
    visit.press("Delete jobs …")
    visit.dialog.get_by_label("pending").check()
    visit.press("Continue …", visit.dialog)
    eventually(lambda: page.evaluate("true") and bool(held))
    with page.expect_event("requestfailed", lambda request: request.url == held[0].request.url):
        page.keyboard.press("Escape")
    expect(visit.dialog).to_have_count(0)
    expect(page.locator("#toasts")).to_be_empty()


def test_declared_jobs_are_not_counted_before_a_deletion(visit: Visit, queue: Queue) -> None:
    one = made(INVOICE, 1)
    stored.jobs().insert_many([{**one, "_id": f"{stored.DECLARED_PREFIX}{number}"} for number in range(12)])
    visit.open("/jobs")
    visit.wait_for(ids(queue))

    def choose() -> None:
        visit.press("Delete jobs …")
        visit.dialog.get_by_label("pending").check()
        visit.press("Continue …", visit.dialog)

    choose()
    expect(visit.dialog.get_by_role("heading")).to_have_text("Delete 1 job of all names?")
    visit.press("Delete", visit.dialog)
    expect(visit.page.locator("#toasts p")).to_have_text("1 job deleted. Undo")
    choose()
    expect(visit.dialog).to_contain_text("No job is in any of these states, except declared ones")


def test_without_jobs_deletion_is_not_offered(visit: Visit, queue: Queue) -> None:
    page = visit.open("/jobs")
    expect(page.get_by_role("heading", name="No jobs", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Delete jobs …")).to_be_disabled()
    sample_data.make_job(queue, INVOICE, 1)
    expect(page.get_by_role("button", name="Delete jobs …")).to_be_enabled()


def test_more_than_a_thousand_jobs_are_deleted_only_with_their_name(visit: Visit, queue: Queue) -> None:
    assert jobs.run_many(INVOICE, [[number] for number in range(1_001)]).stored == 1_001
    visit.open("/jobs")
    visit.press("Delete jobs …")
    visit.dialog.get_by_label("pending").check()
    visit.press("Continue …", visit.dialog)
    expect(visit.dialog.get_by_role("heading")).to_have_text("Delete 1,001 jobs of all names?")
    visit.dialog.get_by_label("Type all names to confirm").fill(INVOICE)
    visit.press("Delete", visit.dialog)
    expect(visit.dialog).to_contain_text("Must be exactly: all names")
    visit.dialog.get_by_label("Type all names to confirm").fill("all names")
    visit.press("Delete", visit.dialog)
    visit.wait_for([])


# Living


def test_changes_by_workers_appear_without_a_reload(visit: Visit, queue: Queue) -> None:
    page = visit.open("/jobs")
    page.evaluate("globalThis.isSamePage = true")
    expect(page.locator("#state")).to_have_text("Live")
    id = sample_data.make_job(queue, REPORT, 1, state=JobState.EXECUTING)
    expect(visit.row(id)).to_contain_text("executing")
    expect(of_name(visit, REPORT)).to_contain_text(id[-6:])
    queue.post("/jobs", {"name": INVOICE, "arguments": []})
    expect(page.locator("#rows > tr")).to_have_count(2)
    queue.post("/jobs/clear", {"states": ["pending"]})
    expect(page.locator("#rows > tr")).to_have_count(1)
    assert page.evaluate("isSamePage")


def test_script_in_data_is_shown_as_text(visit: Visit, queue: Queue) -> None:
    id = sample_data.make_job(queue, INVOICE, SCRIPT, {SCRIPT: SCRIPT})
    page = visit.open("/jobs")
    expect(visit.row(id)).to_contain_text(SCRIPT)
    open_job(visit, id)
    expect(visit.dialog).to_contain_text(SCRIPT)
    assert page.locator("main img, main script, dialog img, dialog script").count() == 0
