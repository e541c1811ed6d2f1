"""Numbers, problems and counts link to the list, with tab and filter, that contains exactly their items."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from tests.any_jobs import INVOICE
from tests.browser import sample_data
from tests.browser.visit import Visit
from tests.real_servers import Servers
from tests.web.queue_client import Queue
from tests.web.test_failures import fail_letter

pytestmark = pytest.mark.browser

LINKS = """(links) => links.map((link) => [
  link.pathname + link.search, link.innerText,
  link.closest("tr")?.querySelector("[data-label=Count]")?.innerText ?? link.innerText])"""


def follow(visit: Visit, path: str, links: str, *, last: str | None = None) -> set[str]:
    """Open the page of each of the `links` of a page once there are some, and the `last` ones; return their paths.

    There are as many rows as the link says; the tab and the filter are those of the path.
    """
    visit.open(path)
    expect(visit.page.locator(last or links).first).to_be_visible()
    found = visit.page.locator(links).evaluate_all(LINKS)
    for to, text, count in found:
        page = visit.open(to)
        expect(page.locator("#rows > tr").first, f"{text} of {path}, {to}").to_be_visible()
        if re.fullmatch(r"[\d,]+", count):
            expect(page.locator("#rows > tr"), f"{text} of {path}, {to}").to_have_count(int(count))
        tab = page.locator("#tabs [aria-current]")
        url = urlsplit(to)
        for name, (value,) in parse_qs(url.query).items():
            if name == "state" and tab.count():
                expect(tab).to_have_attribute("data-state", value)
            else:
                expect(page.locator(f"#filter [name={name}]")).to_have_value(value)
        if url.path.startswith("/messages"):
            assert tab.evaluate("(tab) => tab.pathname") == url.path
    return {to for to, _, _ in found}


def test_numbers_and_problems_link_to_their_items(visit: Visit, queue: Queue, clean: Servers) -> None:
    sample_data.everything(queue, clean.valkey.url)
    sample_data.wait_until_shown(queue)
    # On a busy machine, a first reading may lack the numbers of one server.
    followed = follow(visit, "/", "#systems dd a", last="#systems dd a[href^='/messages']")
    states = ("due", "in-progress", "stuck", "failed")
    assert followed == {
        *(f"/rooms?state={state}" for state in states),
        *("/reviews?state=due", "/thumbnails?state=due", "/thumbnails?state=failed"),
        *("/messages", "/messages/processing", "/messages/failed"),
        *(f"/jobs?state={state}" for state in ("pending", "executing", "failure")),
    }
    assert follow(visit, "/", "#attention .need a") >= {"/rooms?state=due", "/rooms?state=stuck", "/rooms?state=failed"}


def test_the_problem_of_dead_letters_of_the_broker_links_to_their_groups(visit: Visit, clean: Servers) -> None:
    fail_letter(clean, "cannot be decoded")
    assert "/failures?system=broker" in follow(visit, "/", "#attention .need a")


def test_counts_of_jobs_and_groups_of_failures_link_to_their_members(
    visit: Visit, queue: Queue, clean: Servers
) -> None:
    sample_data.everything(queue, clean.valkey.url)
    followed = follow(visit, "/jobs", ".queues td.number a")
    assert f"/jobs?name={INVOICE}&state=failure" in followed
    assert len(follow(visit, "/failures", "#rows th a")) == 4
