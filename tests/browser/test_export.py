"""What people take out of a page: a list as a file, an id on the clipboard, a corrected message."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from queue_manager.operations.failures import MAX_GROUPS
from tests.any_jobs import INVOICE, PARCEL
from tests.browser import sample_data
from tests.browser.visit import Visit
from tests.eventually import eventually
from tests.web.queue_client import Queue

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("clean")]
PAGE = 50  # rows
BYTE_ORDER_MARK = "\ufeff"  # without it, Excel reads a CSV file in the encoding of its Windows


def exported(visit: Visit, chosen: str) -> tuple[str, str]:
    """Return the name and the content of the file."""
    visit.press("Export …")
    visit.dialog.get_by_label("Format").select_option(chosen)
    with visit.page.expect_download() as download:
        visit.press("Export", visit.dialog)
    return download.value.suggested_filename, Path(download.value.path()).read_bytes().decode()


def test_messages_that_match_are_exported_as_json_lines(visit: Visit, queue: Queue) -> None:
    payload = {"n": 12345678901234567890, "text": "a\nb"}
    wanted = [queue.add(type="letter", payload=payload) for _ in range(PAGE + 2)]
    queue.add(type="other")
    visit.open("/messages?filterType=letter")
    expect(visit.page.locator("#rows > tr")).to_have_count(PAGE)
    name, text = exported(visit, "JSON lines, for programs")
    rows = [json.loads(line) for line in text.splitlines()]
    assert name == "messages.jsonl"
    assert sorted(row["id"] for row in rows) == sorted(wanted)
    assert rows[0]["payload"] == payload


def test_jobs_that_match_are_exported_for_a_spreadsheet(visit: Visit, queue: Queue) -> None:
    wanted = sample_data.make_job(queue, arguments=['=HYPERLINK("x")', 1])
    sample_data.make_job(queue, PARCEL)
    visit.open(f"/jobs?name={INVOICE}")
    visit.wait_for([wanted])
    name, text = exported(visit, "CSV, for spreadsheets")
    (row,) = csv.DictReader(io.StringIO(text.removeprefix(BYTE_ORDER_MARK), newline=""))
    assert name == "jobs.csv"
    assert (row["_id"], row["name"], json.loads(row["arguments"])) == (wanted, INVOICE, ['=HYPERLINK("x")', 1])


def test_a_text_that_begins_like_a_formula_is_escaped_for_spreadsheets(visit: Visit, queue: Queue) -> None:
    visit.open("/messages")
    visit.wait_for([queue.add(type="=1+1")])
    _, text = exported(visit, "CSV, for spreadsheets")
    (row,) = csv.DictReader(io.StringIO(text.removeprefix(BYTE_ORDER_MARK), newline=""))
    assert row["type"] == "'=1+1"


def test_a_spreadsheet_recognizes_the_encoding(visit: Visit, queue: Queue) -> None:
    visit.open("/messages")
    visit.wait_for([queue.add(payload="Müller")])
    _, text = exported(visit, "CSV, for spreadsheets")
    assert text.startswith(f"{BYTE_ORDER_MARK}id,")
    assert "Müller" in text
    _, lines = exported(visit, "JSON lines, for programs")
    assert lines.startswith("{")


def test_an_export_of_more_groups_of_failures_than_are_listed_is_not_called_complete(
    visit: Visit, queue: Queue
) -> None:
    added = queue.post("/queue/batch", [{"type": f"mail-{number}"} for number in range(MAX_GROUPS + 1)])
    queue.post("/queue/move", {"messages": added.body["ids"], "toQueue": "dead", "errorReason": "broken"})
    page = visit.open("/failures")
    expect(page.locator("#where")).to_have_text(f"{MAX_GROUPS} of {MAX_GROUPS + 1}")
    _, text = exported(visit, "JSON lines, for programs")
    assert len(text.splitlines()) == MAX_GROUPS
    expect(page.locator("#toasts")).to_have_text(f"Exported the first {MAX_GROUPS} rows; there are more")


def test_a_failed_message_is_corrected_and_replayed_in_one_step(visit: Visit, queue: Queue) -> None:
    id = queue.dead(payload={"card": "expired"})
    visit.open("/messages/failed")
    visit.open_row(id)
    visit.press("Edit …")
    visit.dialog.get_by_label("Payload, as JSON").fill('{"card": "new"}')
    expect(visit.dialog.get_by_label("Replay it")).to_be_checked()
    visit.press("Save")
    visit.wait_for([])
    taken = queue.take()
    assert (taken["id"], taken["payload"]) == (id, {"card": "new"})


def test_an_id_and_a_payload_are_copied(visit: Visit, queue: Queue) -> None:
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    id = queue.add(payload={"a": 1})
    page = visit.open("/messages")
    visit.open_row(id)
    for button, text in (("Copy id", id), ("Copy payload", '{\n  "a": 1\n}')):
        visit.press(button)
        expect(page.get_by_text(f"Copied the {button.removeprefix('Copy ')}")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == text


def test_a_canceled_export_reads_no_further_and_writes_no_file(visit: Visit, queue: Queue) -> None:
    queue.post("/queue/batch", [{"type": "mail"}] * (PAGE + 1))
    held: list[Route] = []
    page = visit.open("/messages")
    expect(page.locator("#rows > tr")).to_have_count(PAGE)
    page.on("download", lambda download: pytest.fail(f"a file was written: {download.suggested_filename}"))
    page.route("**/api/queue/main/messages?*cursor=*", lambda route: held.append(route))
    visit.press("Export …")
    visit.press("Export", visit.dialog)
    eventually(lambda: page.evaluate("true") and bool(held))
    with page.expect_event("requestfailed", lambda request: request.url == held[0].request.url):
        visit.press("Cancel", visit.dialog)
    expect(visit.dialog).to_have_count(0)
    expect(page.locator("#toasts")).to_be_empty()


def test_an_export_shows_its_progress_in_the_dialog(visit: Visit, queue: Queue) -> None:
    queue.add()
    page = visit.open("/messages")
    expect(page.locator("#rows > tr")).to_have_count(1)
    rows = {"messages": [queue.page("main")["messages"][0]] * 2_000, "pagination": {"cursor": "next"}}
    page.route("**/api/queue/main/messages?*cursor=*", lambda route: None)  # it has no second page
    page.route(re.compile(r"/api/queue/main/messages\?(?!.*cursor)"), lambda route: route.fulfill(json=rows))
    visit.press("Export …")
    visit.press("Export", visit.dialog)
    expect(visit.dialog.get_by_text("2,000 read")).to_be_visible()
