"""Selecting rows of each list, by mouse and keyboard, and actions on the selected rows."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from models.database import server_now
from models.job import JobState
from queue_manager.core.clock import seconds
from tests.browser import sample_data
from tests.browser.visit import Visit, Visiting
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.tasks.hand_worker import waiting_messages
from tests.web.credentials import VIEWER
from tests.web.queue_client import Queue

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("clean")]


def audited(queue: Queue) -> tuple[str, int, set[str]]:
    """Return action, count and ids of the only entry that names ids."""
    (entry,) = [one for one in queue.get("/audit").body["entries"] if one["ids"] and one["action"] != "run"]
    return entry["action"], entry["count"], set(entry["ids"])


@pytest.mark.smoke
def test_selected_rooms_are_retried_and_audited_once(visit: Visit, queue: Queue, clean: Servers) -> None:
    ids = [str(make_room(server_now() - seconds(9 + number))) for number in range(3)]
    page = visit.open("/rooms")
    visit.wait_for(ids)
    visit.select(*ids[:2])
    expect(page.locator("#picked-count")).to_have_text("2 selected")
    visit.press("Dispatch now", page.locator("#picked"))
    expect(page.locator("#toasts")).to_contain_text("Dispatched 2 of 2")
    expect(page.locator("#picked")).to_be_hidden()
    visit.wait_for(ids[2:])
    assert {message.args[0] for message in waiting_messages(clean.valkey.url, "support-snooze")} == set(ids[:2])
    assert audited(queue) == ("retry", 2, set(ids[:2]))


@pytest.mark.parametrize(
    ("page", "task_queue"), [("reviews", "review-request-pulse"), ("thumbnails", "stale-thumbnails")]
)
def test_the_other_systems_are_retried_alike(visit: Visit, clean: Servers, page: str, task_queue: str) -> None:
    ids = sample_data.agencies() if page == "reviews" else sample_data.sites()
    opened = visit.open(f"/{page}")
    visit.wait_for(ids)
    opened.get_by_label("Select all on this page").check()
    visit.press("Dispatch now", opened.locator("#picked"))
    expect(opened.locator("#toasts")).to_contain_text("Dispatched 2 of 2")
    assert len(waiting_messages(clean.valkey.url, task_queue)) == 2


def test_shift_selects_a_range_by_mouse_and_keyboard(visit: Visit) -> None:
    ids = [str(make_room(server_now() - seconds(9 + number))) for number in range(5)]
    page = visit.open("/rooms")
    visit.wait_for(ids)
    boxes = page.locator("#rows input")
    boxes.nth(1).click()
    boxes.nth(3).click(modifiers=["Shift"])
    expect(page.locator("#picked-count")).to_have_text("3 selected")
    expect(page.locator("#rows input:checked")).to_have_count(3)
    boxes.nth(2).click(modifiers=["Shift"])  # cleared, like those between it and the last one
    expect(page.locator("#picked-count")).to_have_text("1 selected")
    boxes.nth(1).focus()
    page.keyboard.press("Space")
    expect(page.locator("#picked")).to_be_hidden()
    page.get_by_label("Select all on this page").focus()
    page.keyboard.press("Space")
    expect(page.locator("#picked-count")).to_have_text("5 selected")


def test_selection_is_not_offered_for_items_in_progress_and_to_viewers(
    visit: Visit, guarded: Queue, visiting: Visiting
) -> None:
    rooms = sample_data.rooms()
    page = visit.open("/rooms?state=in-progress")
    expect(page.get_by_label(f"Select {rooms['in-progress']}")).to_be_disabled()
    page.get_by_role("navigation", name="Rooms by state").get_by_role("link", name="Failed").click()
    expect(page.get_by_label(f"Select {rooms['failed']}")).to_be_enabled()
    viewer = visiting(guarded.web)
    viewer.log_in(VIEWER)
    viewer.open("/rooms?state=failed")
    viewer.wait_for([rooms["failed"]])
    expect(viewer.page.locator("#rows input")).to_have_count(0)


def test_another_tab_clears_the_selection(visit: Visit) -> None:
    rooms = sample_data.rooms()
    page = visit.open("/rooms?state=failed")
    visit.select(rooms["failed"])
    page.get_by_role("navigation", name="Rooms by state").get_by_role("link", name="Due").click()
    visit.wait_for([rooms["due"]])
    expect(page.locator("#picked")).to_be_hidden()


@pytest.mark.parametrize(
    ("button", "states", "action"),
    [
        ("Retry", ["pending", "pending"], "retry"),
        ("Cancel …", ["canceled", "canceled"], "cancel"),
        ("Delete …", [None, None], "remove"),
    ],
)
def test_selected_jobs_are_retried_canceled_and_deleted(
    visit: Visit, queue: Queue, button: str, states: list[str | None], action: str
) -> None:
    ids = [sample_data.make_job(queue, state=JobState.FAILURE) for _ in range(2)]
    other = sample_data.make_job(queue, state=JobState.FAILURE)
    page = visit.open("/jobs")
    visit.wait_for([other, *reversed(ids)])
    visit.select(*ids)
    visit.press(button, page.locator("#picked"))
    if button != "Retry":
        visit.press(button.replace("…", "jobs"), visit.dialog)
    expect(page.locator("#toasts")).to_contain_text("2 of 2")
    assert [queue.get(f"/jobs/{id}").body.get("job", {}).get("state") for id in ids] == states
    assert queue.get(f"/jobs/{other}").body["job"]["state"] == "failure"
    assert audited(queue) == (action, 2, set(ids))


def test_jobs_in_an_unsuitable_state_are_skipped(visit: Visit, queue: Queue) -> None:
    jobs = sample_data.jobs(queue)
    page = visit.open("/jobs")
    eventually(lambda: len(visit.ids) == len(jobs))
    page.get_by_label("Select all on this page").check()
    visit.press("Delete …", page.locator("#picked"))
    visit.press("Delete jobs", visit.dialog)
    expect(page.locator("#toasts")).to_contain_text("4 of 5 jobs deleted")
    visit.wait_for([jobs[JobState.EXECUTING]])


def test_a_selection_on_a_narrow_screen_has_no_violations(visit: Visit, queue: Queue) -> None:
    sample_data.rooms()
    sample_data.jobs(queue)
    wrongs = []
    for path in ("/rooms?state=failed", "/jobs"):
        page = visit.open(path)
        page.set_viewport_size({"width": 320, "height": 640})
        page.locator("#rows input").first.check()
        expect(page.locator("#picked")).to_be_visible()
        assert not visit.is_wider_than_screen()
        wrongs += visit.wrongs(path)
    assert not wrongs
