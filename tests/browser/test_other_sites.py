"""A page of another site, opened in a browser that is logged in here, can neither read nor change anything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.other_site import OtherSite
from tests.browser.visit import Visit, Visiting
from tests.web.credentials import OPERATOR
from tests.web.queue_client import Queue

pytestmark = pytest.mark.browser

PAGE = "<!doctype html><title>OtherSite</title><link rel=icon href=data:,><h1>OtherSite</h1>"
FORM = """([action, enctype, name, value]) => {
  const form = document.createElement("form");
  Object.assign(form, { method: "post", action, enctype });
  const input = document.createElement("input");
  Object.assign(input, { name, value });
  form.append(input);
  document.body.append(form);
  form.submit();
}"""
ASK = """async ([url, options]) => {
  try { return (await fetch(url, { credentials: "include", ...options })).status; }
  catch (error) { return String(error); }
}"""
JSON = "application/json"
CASES = {
    # a port of the same machine is the same site, so that the browser sends the cookie
    "same site, by session": ("127.0.0.1", True, 403),
    "another site, by session": ("localhost", True, 401),
    "same site, without keys": ("127.0.0.1", False, 403),
    "another site, without keys": ("localhost", False, 403),
}


@pytest.fixture
def other_site() -> Iterator[OtherSite]:
    with OtherSite(PAGE) as page:
        yield page


@pytest.fixture(params=CASES)
def attacked(request: pytest.FixtureRequest, other_site: OtherSite) -> tuple[Queue, str, int, dict[str, str]]:
    """The process, the origin of the other page, the status it gets, and headers for the test's own requests."""
    host, has_keys, status = CASES[request.param]
    queue: Queue = request.getfixturevalue("guarded" if has_keys else "queue")
    return queue, f"http://{host}:{other_site.port}", status, {"X_API_KEY": OPERATOR} if has_keys else {}


def look_elsewhere(visiting: Visiting, queue: Queue, origin: str, *, has_keys: bool) -> Visit:
    visit = visiting(queue.web)
    visit.expect_host(origin)
    if has_keys:
        visit.log_in(OPERATOR)
        expect(visit.page.locator(".who")).to_contain_text("hand")
    visit.page.goto(origin)
    visit.expect(r"status of 40[0135]|blocked by CORS|net::ERR_|frame-ancestors|favicon\.ico")
    return visit


def test_no_action_is_possible_from_another_site(
    visiting: Visiting, attacked: tuple[Queue, str, int, dict[str, str]]
) -> None:
    queue, origin, refused, headers = attacked
    added = queue.post("/queue/message", {"type": "mine"}, **headers).body["id"]
    visit = look_elsewhere(visiting, queue, origin, has_keys=bool(headers))
    page = visit.page
    api = f"{visit.origin}/api"
    before = len(visit.answers)
    # What a page may send without asking first arrives, and is refused
    simple = {"method": "POST", "mode": "no-cors", "body": '{"type":"theirs"}'}
    for path in ("/queue/message", "/queue/replay", "/trigger/conversations/support-snooze", "/jobs/clear"):
        page.evaluate(ASK, [api + path, simple])
    page.evaluate(ASK, [f"{api}/queue/message", {"mode": "no-cors"}])
    # anything else has to ask first, and never arrives
    for method, path in (("DELETE", "/queue/clear"), ("PUT", f"/queue/message/{added}")):
        assert "Failed to fetch" in page.evaluate(ASK, [api + path, {"method": method, "body": "{}"}])
    typed = {"method": "POST", "headers": {"content-type": JSON}, "body": '{"type":"theirs"}'}
    assert "Failed to fetch" in page.evaluate(ASK, [f"{api}/queue/message", typed])
    assert {answer.status for answer in visit.answers[before:]} <= {refused, 401, 403, 405}
    assert [answer.status for answer in visit.answers[before : before + 5]] == [refused] * 5
    # A form goes there with the whole page
    for path, name, value in (("/api/queue/message", '{"type":"theirs","x":"', '"}'), ("/logout", "a", "b")):
        page.goto(origin)
        with page.expect_navigation() as navigation:
            page.evaluate(FORM, [visit.origin + path, "text/plain", name, value])
        assert navigation.value.status in (401, 403), path
    listed = queue.get("/queue/main/messages", **headers).body["messages"]
    assert [one["id"] for one in listed] == [added]
    # and the same from our own page is done
    visit.open("/messages")
    expect(page.locator("#rows > tr")).to_have_count(1)
    assert page.evaluate(ASK, ["/api/queue/message", {"method": "POST", "body": '{"type":"mine"}'}]) == 201


def test_no_data_can_be_read_from_another_site(
    visiting: Visiting, attacked: tuple[Queue, str, int, dict[str, str]]
) -> None:
    queue, origin, _, headers = attacked
    visit = look_elsewhere(visiting, queue, origin, has_keys=bool(headers))
    page = visit.page
    for path in ("/api/queue/status", "/api/queue/main/messages", "/metrics", "/openapi.json", "/"):
        assert "Failed to fetch" in page.evaluate(ASK, [visit.origin + path, {}])
    assert (
        page.evaluate(
            """(url) => new Promise((resolve) => {
          const source = new EventSource(url, { withCredentials: true });
          source.onopen = () => resolve("open");
          source.onerror = () => (source.close(), resolve("refused"));
        })""",
            f"{visit.origin}/api/queue/events",
        )
        == "refused"
    )
    page.evaluate(
        """(src) => new Promise((resolve) => {
          const frame = document.createElement("iframe");
          frame.onload = resolve;
          frame.src = src;
          document.body.append(frame);
        })""",
        f"{visit.origin}/messages",
    )
    assert not page.frames[-1].url.startswith(visit.origin)
