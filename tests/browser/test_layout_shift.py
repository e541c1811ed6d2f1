"""Nothing on a page jumps while it is read: the layout shift that browsers measure, of every page."""

from __future__ import annotations

import pytest
from playwright.sync_api import ViewportSize, expect

from models.database import server_now
from queue_manager.core.clock import hours, seconds
from tests.browser import sample_data
from tests.browser.test_accessible import PAGES
from tests.browser.visit import NARROW, WIDE, Visit
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.queue_client import Queue

pytestmark = pytest.mark.browser

MAX_SHIFT = 0.1  # "good", in the terms of Core Web Vitals
SETTLING = 700  # ms, for what is read after the first rows: counts, charts, health
OBSERVE = """globalThis.shifts = [];
new PerformanceObserver((list) => shifts.push(...list.getEntries()))
  .observe({ type: "layout-shift", buffered: true });"""
# The largest sum of a session: at most 5 s, without a gap of a second. Two frames later, the last one is known.
SHIFT = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
  let [worst, sum, begin, last] = [0, 0, -Infinity, -Infinity];
  for (const { value, startTime } of shifts) {
    if (startTime - last > 1000 || startTime - begin > 5000) [sum, begin] = [0, startTime];
    [sum, last] = [sum + value, startTime];
    worst = Math.max(worst, sum);
  }
  done(worst);
})))"""


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_no_page_jumps_while_it_is_loaded(visit: Visit, queue: Queue, clean: Servers, size: ViewportSize) -> None:
    messages = sample_data.everything(queue, clean.valkey.url)
    for number in range(30):
        queue.add(payload=number)
        make_room(server_now() - seconds(number))
    # Again, so that no problem of a late scan or a missing worker begins while the overview is measured.
    sample_data.scans()
    sample_data.workers(clean.valkey.url)
    sample_data.wait_until_shown(queue)
    visit.expect_status(404)
    visit.context.add_init_script(OBSERVE)
    visit.page.set_viewport_size(size)
    pages = PAGES | {
        f"/messages/{messages['dead']}": "#found .timeline",
        f"/rooms/{make_room(server_now() + hours(1))}": "#found .timeline",
    }
    shifted = {}
    for path, content in pages.items():
        page = visit.open(path)
        expect(page.locator(content).first).to_be_visible()
        page.wait_for_load_state()
        page.wait_for_timeout(SETTLING)
        page.evaluate("scrollTo(0, document.body.scrollHeight)")  # where the history is
        page.wait_for_timeout(SETTLING)
        shifted[path] = page.evaluate(SHIFT)
    assert {path: shift for path, shift in shifted.items() if shift >= MAX_SHIFT} == {}
