"""Unknown pages and unavailable servers: the pages explain them and recover by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from models.database import server_now
from queue_manager.core.clock import seconds
from tests.browser import sample_data
from tests.browser.visit import BROKEN_OFF, DATABASE, Visit, Visiting
from tests.e2e.tcp_proxy import TcpProxy
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.queue_client import Queue, environment
from tests.web.web_process import Web, forked_web

pytestmark = pytest.mark.browser

PAGES = ("/", "/rooms", "/reviews", "/thumbnails", "/messages", "/jobs", "/schedule", "/audit", "/failures")
AWAY = "does not answer"
MONGODB_AWAY, REDIS_AWAY = (re.compile(f"{server} (at .* does|did) not answer") for server in ("MongoDB", "Redis"))


@pytest.mark.parametrize("path", ["/nothing", "/schedule/nothing", "/systems/nothing", "/<b>nothing</b>"])
def test_a_page_that_does_not_exist_leads_back(visit: Visit, path: str) -> None:
    visit.expect_status(404)
    page = visit.open(path)
    expect(page.get_by_role("heading", level=1)).to_have_text("Page not found")
    assert page.locator("main b").count() == 0
    expect(page.locator("main")).to_contain_text(f"There is no page {path}.")
    page.get_by_role("link", name="Go to the overview").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert visit.path == "/"


def test_every_page_leads_to_every_other(visit: Visit) -> None:
    page = visit.open("/")
    names = page.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts()
    assert names == [
        "Overview",
        "Rooms",
        "Reviews",
        "Thumbnails",
        "Messages",
        "Jobs",
        "Failures",
        "Schedule",
        "Workers",
        "Audit",
        "API",
    ]
    for name in [*names[1:], names[0]]:
        page.get_by_role("link", name=name, exact=True).first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(page.locator("nav[aria-label=Pages] [aria-current=page]")).to_have_text(name)


def test_the_api_is_described(visit: Visit) -> None:
    page = visit.open("/docs")
    expect(page.get_by_text("/api/queue/replay").first).to_be_visible()
    expect(page.locator("details dt").first).to_be_hidden()
    page.locator("summary").first.click()
    expect(page.locator("details dt").first).to_be_visible()
    assert not [text for text in page.locator(".operation > p").all_inner_texts() if "`" in text]
    listed = page.get_by_role("article").filter(has=page.get_by_role("heading", name="GET /api/failures viewer"))
    expect(listed).to_contain_text("groups, ")
    page.get_by_role("navigation", name="Parts of the API").get_by_role("link", name="Jobs").click()
    expect(page.get_by_role("heading", level=2, name="Jobs")).to_be_in_viewport()


# Servers that are unavailable


class Fragile:
    """A web process whose connections to its servers can be cut."""

    def __init__(self, web: Web, mongodb: TcpProxy, redis: TcpProxy) -> None:
        self.web, self.mongodb, self.redis = web, mongodb, redis


@pytest.fixture(scope="module")
def lasting(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fragile]:
    with ExitStack() as stack:
        mongodb, redis = (stack.enter_context(TcpProxy(port)) for port in (servers.mongo.port, servers.valkey.port))
        url = f"redis://127.0.0.1:{redis.port}"
        chosen = environment(
            f"{url}/{DATABASE}",
            QUEUE_NAME="browser",
            QM_JOBS="true",
            REDIS_URL=f"{url}/0",
            MONGO_DB_URL=f"mongodb://127.0.0.1:{mongodb.port}/queue_manager?directConnection=true",
        )
        yield Fragile(stack.enter_context(forked_web(tmp_path_factory.mktemp("fragile"), **chosen)), mongodb, redis)


@pytest.fixture
def fragile(clean: Servers, lasting: Fragile) -> Iterator[Fragile]:
    """Everything answers at first, and again at the end."""
    yield lasting
    for proxy in (lasting.mongodb, lasting.redis):
        proxy.close()
        proxy.open()


def test_an_unavailable_queue_server_is_reported_until_it_is_back(
    fragile: Fragile, queue: Queue, visiting: Visiting
) -> None:
    first = queue.add()
    visit = visiting(fragile.web)
    visit.expect_status(503)
    page = visit.open("/messages")
    expect(visit.row(first)).to_be_visible()
    fragile.redis.close()
    visit.press("Add message")
    visit.dialog.get_by_label("Type", exact=True).fill("mail")
    visit.press("Add", visit.dialog)
    expect(visit.dialog.get_by_role("alert").filter(has_text=AWAY)).to_be_visible()
    visit.press("Cancel", visit.dialog)
    expect(visit.dialog).to_have_count(0)
    page.get_by_label("Type", exact=True).fill("mail")
    expect(page.locator("#problem")).to_contain_text(AWAY)
    expect(visit.row(first)).to_be_visible()  # what was read stays
    fragile.redis.open()
    second = queue.add()
    expect(page.locator("#problem")).to_be_empty()
    expect(visit.row(second)).to_be_visible()


@pytest.mark.parametrize(("path", "server"), [("/messages", "redis"), ("/jobs", "mongodb")])
def test_an_open_list_is_not_shown_as_live_while_its_server_is_unavailable(
    path: str, server: str, fragile: Fragile, visiting: Visiting
) -> None:
    visit = visiting(fragile.web)
    visit.expect_status(503)
    page = visit.open(path)
    expect(page.locator("#state")).to_have_text("Live")
    proxy: TcpProxy = getattr(fragile, server)
    proxy.close()
    expect(page.locator("#state")).to_have_text("Reconnecting …", timeout=60_000)
    expect(page.locator("#problem")).to_contain_text(AWAY)
    proxy.open()
    expect(page.locator("#state")).to_have_text("Live")
    expect(page.locator("#problem")).to_be_empty()


@pytest.mark.parametrize("status", [429, 500, 502, 504])
def test_a_failed_list_request_is_repeated(status: int, queue: Queue, visit: Visit) -> None:
    id = queue.add()
    visit.expect_status(status)
    lists = "**/api/queue/main/messages*"
    visit.page.route(lists, lambda route: route.fulfill(status=status, body="null"))
    page = visit.open("/messages")
    expect(page.locator("#problem")).to_contain_text(str(status))
    expect(page.locator("#state")).to_have_text("Live")
    page.unroute(lists)
    expect(visit.row(id)).to_be_visible()
    expect(page.locator("#problem")).to_be_empty()


def test_scripts_that_are_loaded_on_demand_are_loaded_again_after_a_failure(visit: Visit, queue: Queue) -> None:
    visit.expect(BROKEN_OFF)
    visit.expect("Failed to fetch dynamically imported module")
    scripts = re.compile("/static/(display|export|chart)[.]js")
    visit.page.route(scripts, lambda route: route.abort())
    queue.add()
    page = visit.open("/messages")
    for button in ("Times in UTC", "Export …"):
        visit.press(button)
        toast = page.locator("#toasts p")
        expect(toast).to_have_text("Queue Manager does not answer")
        toast.evaluate("toast => toast.remove()")
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/chart.js")):
        page.locator("#past").scroll_into_view_if_needed()
    page.unroute(scripts)
    expect(page.locator("#past")).to_contain_text("History")
    for button, title in (("Times in UTC", "Display and keys"), ("Export …", "Export")):
        visit.press(button)
        expect(visit.dialog.get_by_role("heading")).to_have_text(title)
        page.keyboard.press("Escape")


def test_a_page_recovers_from_responses_of_another_server(visit: Visit, queue: Queue) -> None:
    """A proxy may answer with its own page, for example to log in."""
    id = queue.add()
    path = re.compile(r"/api/(queue/main/messages|workers)")
    visit.page.route(path, lambda route: route.fulfill(status=200, content_type="text/html", body="<p>Log in"))
    workers = visit.context.new_page()
    workers.route(path, lambda route: route.fulfill(status=200, content_type="text/html", body="<p>Log in"))
    workers.goto(f"{visit.origin}/workers")
    page = visit.open("/messages")
    expect(page.locator("#problem")).to_have_text("Queue Manager does not answer; trying again")
    expect(workers.locator("#problem")).to_have_text("Queue Manager does not answer")
    for one in (page, workers):
        one.unroute(path)
    expect(visit.row(id)).to_be_visible()
    expect(workers.locator("#empty")).to_be_visible()
    for one in (page, workers):
        expect(one.locator("#problem")).to_be_empty()


def test_without_mongodb_messages_work_and_the_rest_recovers(
    fragile: Fragile, queue: Queue, visiting: Visiting
) -> None:
    room = str(make_room(server_now() - seconds(60)))
    message = queue.add()
    visit = visiting(fragile.web)
    visit.expect_status(503)
    overview, rooms, jobs = (visit.context.new_page() for _ in range(3))
    for page, path in ((overview, "/"), (rooms, "/rooms"), (jobs, "/jobs")):
        page.goto(visit.origin + path)
    expect(rooms.locator(f'tr[data-id="{room}"]')).to_be_visible()
    fragile.mongodb.close()
    expect(overview.get_by_role("region", name="Needs attention")).to_contain_text(MONGODB_AWAY)
    expect(overview.get_by_role("article", name="Messages")).to_contain_text("critical")
    expect(rooms.get_by_role("region", name="Health")).to_contain_text(MONGODB_AWAY)
    jobs.get_by_label("State").select_option("pending")
    rooms.get_by_label("Search").fill(room[:8])
    for page in (rooms, jobs):
        expect(page.locator("#problem")).to_contain_text(AWAY)
    visit.open("/messages")
    expect(visit.row(message)).to_be_visible()
    visit.open("/schedule")
    expect(visit.page.locator("#problem")).to_contain_text(AWAY)
    fragile.mongodb.open()
    for page in (rooms, jobs, visit.page):
        expect(page.locator("#problem")).to_be_empty()
    expect(rooms.locator(f'tr[data-id="{room}"]')).to_be_visible()
    expect(overview.get_by_text(MONGODB_AWAY)).to_have_count(0)


def test_without_redis_jobs_work_and_the_rest_recovers(fragile: Fragile, queue: Queue, visiting: Visiting) -> None:
    job = sample_data.make_job(queue)
    visit = visiting(fragile.web)
    visit.expect_status(503)
    fragile.redis.close()
    page = visit.open("/")
    expect(page.get_by_role("region", name="Needs attention")).to_contain_text(REDIS_AWAY)
    visit.open("/jobs")
    expect(visit.row(job)).to_be_visible()
    visit.open("/schedule")
    expect(page.locator("#problem")).to_contain_text(AWAY)
    fragile.redis.open()
    expect(page.locator("#problem")).to_be_empty()
    expect(page.locator("#entries > tr")).to_have_count(5)


def test_a_page_of_a_system_that_is_off_explains_how_to_turn_it_on(fragile: Fragile, visiting: Visiting) -> None:
    visit = visiting(fragile.web)
    page = visit.open("/")
    expect(page.get_by_role("article", name="Reviews")).to_contain_text("QM_PROJECTS=true")
    page.get_by_role("article", name="Reviews").get_by_role("link").first.click()
    expect(page.get_by_role("region", name="Health")).to_contain_text("QM_PROJECTS=true")
