"""Lists and statistics of the queue over HTTP."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from queue_manager.core.clock import seconds
from queue_manager.operations import cursors
from queue_manager.web.routes.messages import listing
from services.message_queue import NewMessage
from tests.real_servers import Servers
from tests.services.message_queue.message_lab import Lab
from tests.web.queue_client import Queue


def test_a_page_has_messages_newest_first_and_its_position(queue: Queue) -> None:
    ids = [queue.add(payload={"n": n}) for n in range(5)]
    page = queue.page("main", "limit=2&page=2")
    assert [message["id"] for message in page["messages"]] == [ids[2], ids[1]]
    assert page["messages"][0]["payload"] == {"n": 2}
    cursor = page["pagination"].pop("cursor")
    assert page["pagination"] == {
        "page": 2,
        "limit": 2,
        "total": 5,
        "total_pages": 3,
        "totalPages": 3,
        "is_partial": False,
    }
    assert queue.ids("main", f"cursor={cursor}") == [ids[0]]
    assert abs(page["server_time"] - time.time()) < 5


def test_a_page_has_50_messages_and_1000_at_most(queue: Queue) -> None:
    queue.post("/queue/batch", [{"type": "a"}] * 60)
    page = queue.page("main")
    assert (len(page["messages"]), page["pagination"]["limit"]) == (50, 50)
    assert len(queue.ids("main", "limit=1000")) == 60


@pytest.mark.slow
def test_a_distant_page_equals_the_one_reached_by_cursors(queue: Queue) -> None:
    for priority in (0, 5) * 12:
        queue.post("/queue/batch", [{"type": "a", "priority": priority}] * 500)
    pages = [queue.page("main", "limit=1000")]
    while cursor := pages[-1]["pagination"]["cursor"]:
        pages.append(queue.page("main", f"limit=1000&cursor={cursor}"))
    assert len({message["id"] for page in pages for message in page["messages"]}) == 12_000
    for number in (6, 7, 12):
        assert queue.page("main", f"limit=1000&page={number}")["messages"] == pages[number - 1]["messages"]
    assert queue.page("main", "limit=1000&page=13")["messages"] == []


def test_a_page_after_the_end_is_empty(queue: Queue) -> None:
    queue.add()
    for page in (2, 999_999):
        found = queue.page("main", f"page={page}&limit=1000")
        assert (found["messages"], found["pagination"]["total"]) == ([], 1)


def test_an_empty_page_has_a_count_of_zero(queue: Queue) -> None:
    about = queue.page("acknowledged")["pagination"]
    zeros = {"total": 0, "total_pages": 0, "totalPages": 0}
    assert about == {"page": 1, "limit": 50, **zeros, "cursor": None, "is_partial": False}


def test_each_state_has_its_list(queue: Queue) -> None:
    dead = queue.dead()
    held, waiting = queue.add(), queue.add()
    token = queue.take()["lock_token"]
    assert [queue.ids(place) for place in ("main", "processing", "dead")] == [[waiting], [held], [dead]]
    assert queue.page("processing")["messages"][0]["lock_token"] == token
    queue.post("/queue/ack", {"id": held, "lock_token": token})
    queue.post("/queue/move", {"messages": [dead], "toQueue": "archived"})
    assert [queue.ids(place) for place in ("acknowledged", "archived")] == [[held], [dead]]


def test_pages_by_cursor_show_everything_once(queue: Queue) -> None:
    queue.post("/queue/batch", [{"type": "a" if n % 3 else "b", "priority": n % 10} for n in range(100)])
    for query, expected in (("", 100), ("&filterType=b", 34), ("&search=nowhere", 0)):
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = queue.page("main", f"limit=7{query}&cursor={cursor}")
            seen += [message["id"] for message in page["messages"]]
            cursor = page["pagination"]["cursor"]
        assert len(seen) == len(set(seen)) == expected


def test_filters_find_the_matching_messages(queue: Queue) -> None:
    mail = queue.add("mail", {"to": "Ada"}, priority=7)
    sms = queue.add("sms", "needle")
    retried = queue.add("push", priority=9)
    queue.post(f"/queue/message/{retried}/nack", {"lock_token": queue.take()["lock_token"]})
    assert queue.ids("main", "filterType=mail") == [mail]
    assert queue.ids("main", "filterPriority=0") == [sms]
    assert queue.ids("main", "filterAttempts=1") == [retried]
    assert queue.ids("main", "search=NEEDLE") == [sms]
    assert queue.ids("main", f"search={mail}") == [mail]
    page = queue.page("main", "filterType=mail&filterPriority=7&filterAttempts=0&search=ada")
    assert (len(page["messages"]), page["pagination"]["total"]) == (1, 1)
    assert len(queue.ids("main", "filterType=&filterPriority=&filterAttempts=&search=&startDate=&cursor=")) == 3


def test_dates_are_iso_or_seconds_or_milliseconds(queue: Queue) -> None:
    queue.add()
    now = datetime.now(UTC)
    before, after = now - timedelta(minutes=1), now + timedelta(minutes=1)
    for write in (
        lambda at: at.isoformat(),
        lambda at: at.isoformat().replace("+00:00", "Z"),
        lambda at: at.replace(tzinfo=None).isoformat(),
        lambda at: f"{at + (at - now) * 2_880:%Y%m%d}",  # two days before and after
        lambda at: str(at.timestamp()),
        lambda at: str(int(at.timestamp() * 1000)),
    ):
        assert len(queue.ids("main", f"startDate={write(before)}&endDate={write(after)}")) == 1
        assert queue.ids("main", f"startDate={write(after)}") == []
        assert queue.ids("main", f"endDate={write(before)}") == []


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("main", "priority"),
        ("main", "created_at"),
        ("main", "createdAt"),
        ("processing", "deadlineAt"),
        ("dead", "failedAt"),
        ("acknowledged", "acknowledged_at"),
    ],
)
def test_lists_are_sorted_by_a_field_both_ways(place: str, name: str, queue: Queue) -> None:
    for priority in (3, 1, 2):
        if place == "dead":
            queue.dead()
        else:
            queue.add(priority=priority)
    for _ in range(3 if place in ("processing", "acknowledged") else 0):
        taken = queue.take()
        if place == "acknowledged":
            queue.post("/queue/ack", {"id": taken["id"], "lock_token": taken["lock_token"]})
    up = queue.ids(place, f"sortBy={name}&sortOrder=asc")
    assert len(up) == 3
    assert queue.ids(place, f"sortBy={name}&sortOrder=desc") == up[::-1]


@pytest.mark.parametrize(("place", "name"), [("main", "deadlineAt"), ("archived", "createdAt"), ("dead", "priority")])
def test_an_order_of_another_state_is_refused(place: str, name: str, queue: Queue) -> None:
    answer = queue.get(f"/queue/{place}/messages?sortBy={name}")
    assert (answer.status, answer.body["field"]) == (422, "sortBy")


def test_ascending_alone_is_the_oldest_first(queue: Queue) -> None:
    ids = [queue.add() for _ in range(3)]
    assert queue.ids("main", "sortOrder=asc") == ids


def test_pages_in_any_order_link_to_the_next(queue: Queue) -> None:
    queue.post("/queue/batch", [{"type": "a", "priority": number % 10} for number in range(100)])
    for query in ("sortBy=priority", "sortBy=priority&sortOrder=asc", "sortBy=createdAt", "sortOrder=asc"):
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = queue.page("main", f"{query}&limit=30&cursor={cursor}")
            seen += [message["id"] for message in page["messages"]]
            assert not page["pagination"]["is_partial"]
            cursor = page["pagination"]["cursor"]
        assert seen == queue.ids("main", f"{query}&limit=1000")
        assert len(set(seen)) == 100


# Counting


def test_matching_messages_are_counted_over_all_pages(queue: Queue) -> None:
    queue.dead(type="b")
    for _ in range(6):
        queue.post("/queue/batch", [{"type": "a" if n % 4 else "b", "priority": n % 10} for n in range(500)])
    for place, query, expected in (
        ("main", "", 3_000),
        ("main", "filterType=b", 750),
        ("main", "filterPriority=2&filterType=b", 150),
        ("main", "search=nowhere", 0),
        ("dead", "filterAttempts=1", 1),
        ("acknowledged", "", 0),
    ):
        found = queue.get(f"/queue/{place}/count?{query}")
        assert (found.status, found.body["count"], found.body["is_complete"]) == (200, expected, True)
        assert abs(found.body["server_time"] - time.time()) < 5


def test_a_bad_count_is_refused_with_the_field(queue: Queue) -> None:
    for path, status, field in (
        ("/queue/mine/count", 404, "queueType"),
        ("/queue/main/count?filterPriority=x", 422, "filterPriority"),
        ("/queue/dead/count?startDate=soon", 422, "startDate"),
    ):
        answer = queue.get(path)
        assert (answer.status, answer.body["field"]) == (status, field)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("page=0", "page"),
        ("page=-1", "page"),
        ("page=x", "page"),
        (f"page={'9' * 5_000}", "page"),
        ("page=1000000000000", "page"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=1.5", "limit"),
        ("limit=nan", "limit"),
        ("sortBy=payload", "sortBy"),
        ("sortBy=id", "sortBy"),
        ("sortOrder=up", "sortOrder"),
        ("filterPriority=x", "filterPriority"),
        ("filterPriority=-1", "filterPriority"),
        (f"filterAttempts={'9' * 5_000}", "filterAttempts"),
        ("filterType=%00", "filterType"),
        ("search=%00", "search"),
        (f"search={'s' * 1_025}", "search"),
        ("startDate=tomorrow", "startDate"),
        ("startDate=2026", "startDate"),
        ("endDate=99999999", "endDate"),
        ("startDate=1e400", "startDate"),
        ("endDate=nan", "endDate"),
        ("endDate=-1e16", "endDate"),
        ("cursor=nonsense", "cursor"),
        ("cursor=1e309", "cursor"),
        ("cursor=1-1", "cursor"),
    ],
    ids=lambda text: text[:30],
)
@pytest.mark.parametrize("place", ["main", "processing"])
def test_a_bad_parameter_is_422_with_its_name(place: str, query: str, field: str, queue: Queue) -> None:
    queue.add()
    answer = queue.get(f"/queue/{place}/messages?{query}")
    assert (answer.status, answer.body["field"]) == (422, field)


@pytest.mark.parametrize("place", ["main", "processing", "dead"])
@pytest.mark.parametrize("cursor", ["0-0/0", f"{'9' * 20}-{'9' * 20}/999", f"1-{'9' * 20}/0", f"{'9' * 20}-0/0"])
def test_no_cursor_causes_an_internal_error(place: str, cursor: str, queue: Queue) -> None:
    queue.dead()
    queue.add()
    queue.take()
    opaque = cursors.encode([cursor], of=f"messages {place}  desc")
    assert queue.get(f"/queue/{place}/messages?cursor={opaque}").status == 200


def test_a_cursor_of_another_list_is_refused(queue: Queue) -> None:
    for _ in range(2):
        queue.add()
    cursor = queue.page("main", "limit=1")["pagination"]["cursor"]
    for other in ("dead/messages?", "main/messages?sortOrder=asc&", "main/messages?sortBy=priority&"):
        answer = queue.get(f"/queue/{other}cursor={cursor}")
        assert (answer.status, answer.body["field"]) == (422, "cursor"), other


def test_a_malformed_entry_is_listed_unchanged(queue: Queue) -> None:
    with queue.redis() as client:
        client.xadd("tested", {"data": b"\xff\x00 no json"})
        client.xadd("tested", {"other": "field"})
    assert queue.get("/queue/message").status == 404
    letters = queue.page("dead")["messages"]
    assert [letter["undecodable"] for letter in letters] == [True, True]


def test_status_counts_messages_in_each_state(queue: Queue) -> None:
    queue.dead()
    queue.add(priority=2)
    status = queue.get("/queue/status").body
    assert {name: status[name] for name in ("main", "processing", "dead", "total_acknowledged", "overdue")} == {
        "main": 1,
        "processing": 0,
        "dead": 1,
        "total_acknowledged": 0,
        "overdue": 0,
    }
    assert (status["priorities"]["2"], len(status["priorities"])) == (1, 10)
    assert abs(status["server_time"] - time.time()) < 5


def test_metrics_have_the_known_names(queue: Queue) -> None:
    held = queue.add()
    queue.post("/queue/ack", {"id": held, "lock_token": queue.take()["lock_token"]})
    queue.add()
    metrics = queue.get("/queue/metrics").body
    metrics.pop("server_time")
    assert metrics.pop("details") == {f"priority_{priority}_queued": int(priority == 0) for priority in range(10)}
    assert metrics == {
        "main_queue_size": 1,
        "processing_queue_size": 0,
        "dead_letter_queue_size": 0,
        "acknowledged_queue_size": 1,
        "archived_queue_size": 0,
        "total_acknowledged": 1,
        "overdue": 0,
        "priority_levels": 10,
    }


def test_configuration_and_health_are_shown(queue: Queue) -> None:
    config = queue.get("/queue/config").body
    assert (config["ack_timeout_seconds"], config["max_attempts"]) == (30, 3)
    health = queue.get("/health")
    assert (health.status, health.body) == (200, {"status": "OK"})


@pytest.mark.slow
@pytest.mark.parametrize("order", ["", "sortBy=priority", "sortBy=createdAt&sortOrder=asc"])
def test_response_is_bounded_in_bytes_in_every_order(order: str, queue: Queue) -> None:
    payload = "x" * 1_000_000
    ids = {queue.add(payload=payload, priority=number % 3) for number in range(24)}
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = queue.get(f"/queue/main/messages?limit=1000&{order}&cursor={cursor}")
        assert len(answer.text) < 19_000_000
        found += [message["id"] for message in answer.body["messages"]]
        assert answer.body["pagination"]["is_partial"] == (len(found) < 24)
        cursor = answer.body["pagination"]["cursor"]

    assert len(found) == 24
    assert set(found) == ids


@pytest.mark.slow
def test_lists_in_the_form_of_the_older_service_are_bounded_in_bytes(queue: Queue) -> None:
    ids = [queue.add(payload="x" * 1_000_000) for _ in range(24)]
    answer = queue.get(f"/queue/messages?startTimestamp=0&endTimestamp={time.time() + 60}&limit=1000")
    assert [message["id"] for message in answer.body] == ids[: len(answer.body)]
    assert 16 <= len(answer.body) < 24
    answer = queue.get("/queue/status?include_messages=true")
    newest = [message["id"] for message in answer.body["mainQueue"]["messages"]]
    assert newest == ids[::-1][: len(newest)]
    assert 2 <= len(newest) <= 5


def test_a_date_range_is_searched_for_a_bounded_time(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lab(clean.valkey.url) as lab:
        monkeypatch.setattr(listing, "queue_admin", lambda: lab.contents)
        for _ in range(2):
            lab.queue.enqueue_batch([NewMessage(type="mail")] * 500)

        def found(start: float) -> int:
            answer = listing.messages_of_date_range(start, time.time() + 60, limit=1000)
            return len(json.loads(bytes(answer.body)))

        assert (found(0), found(time.time() + 30)) == (1_000, 0)

        monkeypatch.setattr(listing, "COUNT_BUDGET", seconds(0))
        assert (found(0), found(time.time() + 30)) == (100, 0)  # of one page
