"""Searches as server-sent events, of messages and of jobs alike: to the end, with progress, within bounds."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any, cast
from urllib.parse import quote

import pytest
import redis
from fastapi import Request

from benchmarks.rooms.processes import cost, resident
from models import job as model
from models.database import server_now
from queue_manager.web.live import search as live_search
from queue_manager.web.live.search import SearchSlice
from services.job_queues.fields import new_job
from services.message_queue.scripts import source
from tests.any_jobs import INVOICE, MODULE
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.web.queue_client import NAME, Queue, Stream, empty_queue

MIB = 1024 * 1024
MILLION = 1_000_000
MAX_ENTRIES = 900  # that one script reads, see reading.lua
MAX_GROWTH = 64  # MB of the process during a search
COPY = """
local head, tail, record_head, record_tail = unpack(ARGV)
for first = ARGV[5], ARGV[6], 1000 do
  local records = {}
  for number = first, first + 999 do
    local copy = string.format('%032d', number)
    local sid = redis.call('XADD', KEYS[1], '*', 'data', head .. copy .. tail)
    records[#records + 1] = copy
    records[#records + 1] = record_head .. sid .. record_tail
  end
  redis.call('HSET', KEYS[1] .. '_metadata', unpack(records))
end
"""
MAX_MATCHES_SIZE = 19 * MIB  # see live/search.py: 16 MiB, and a slice


@dataclass(frozen=True)
class Searched:
    """A list of one web process. `add` stores entries that contain these texts, and returns their ids, oldest first."""

    queue: Queue
    list_path: str
    id_field: str
    add: Callable[[Iterable[str]], list[str]]

    def search(self, query: str = "") -> list[tuple[str, Any]]:
        """Return the events of a search."""
        with self.stream(query) as stream:
            assert stream.status == 200
            return list(stream.events())

    def stream(self, query: str) -> Stream:
        return Stream(self.queue.web, f"/api{self.list_path}/search", query=f"?{query}")

    def ids(self, events: Sequence[tuple[str, Any]]) -> list[str]:
        return [one[self.id_field] for name, data in events if name == "matches" for one in data]


def add_messages(queue: Queue, texts: Iterable[str]) -> list[str]:
    return [queue.add(payload=text) for text in texts]


def add_jobs(texts: Iterable[str]) -> list[str]:
    now = server_now()
    new = [new_job(INVOICE, [text], due=now, priority=0, repetition={}, now=now) for text in texts]
    return [str(id) for id in model.jobs().insert_many(new).inserted_ids]


@pytest.fixture
def queue(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return empty_queue(clean, tmp_path_factory, QM_JOBS="true", JOBS_IMPORTS=json.dumps([MODULE]))


@pytest.fixture(params=["messages", "jobs"])
def listed(request: pytest.FixtureRequest, queue: Queue) -> Searched:
    if request.param == "jobs":
        return Searched(queue, "/jobs", "_id", add_jobs)
    return Searched(queue, "/queue/main/messages", "id", lambda texts: add_messages(queue, texts))


@pytest.mark.slow
def test_a_search_ends_with_its_matches_and_the_number_read(listed: Searched) -> None:
    ids = listed.add(["needle", *["hay"] * 30, "Needle"])
    events = listed.search("search=needle")
    assert listed.ids(events) == [ids[-1], ids[0]]
    end = {"searched": 32, "total": 32, "found": 2, "cursor": None}
    assert events[-1] == ("end", end)
    assert {name for name, _ in events[:-1]} <= {"matches", "progress"}


def test_a_search_without_a_match_reports_that_it_read_everything(listed: Searched) -> None:
    assert listed.search("search=needle") == [("end", {"searched": 0, "total": 0, "found": 0, "cursor": None})]
    listed.add(["hay"] * 3)
    assert listed.search("search=needle")[-1] == ("end", {"searched": 3, "total": 3, "found": 0, "cursor": None})


def test_a_search_ends_at_its_limit_and_continues_at_its_cursor(listed: Searched) -> None:
    ids = listed.add([f"{'needle' if number % 3 else 'hay'} {number}" for number in range(30)])
    needles = [id for number, id in enumerate(ids) if number % 3][::-1]
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        events = listed.search(f"search=needle&limit=7&cursor={quote(cursor)}")
        name, end = events[-1]
        some = listed.ids(events)
        assert (name, end["found"]) == ("end", len(some))
        assert len(some) == 7 or end["cursor"] is None
        found += some
        cursor = end["cursor"]
    assert found == needles


def test_a_search_has_the_order_of_its_list(listed: Searched) -> None:
    ids = listed.add(["needle"] * 5)
    ascending = "sortOrder=asc" if listed.id_field == "id" else "order=asc"
    assert listed.ids(listed.search(f"search=needle&{ascending}")) == ids


@pytest.mark.parametrize(("query", "field"), [("limit=0", "limit"), ("limit=x", "limit"), ("cursor=x", "cursor")])
def test_a_bad_parameter_is_422_with_its_name(listed: Searched, query: str, field: str) -> None:
    answer = listed.queue.get(f"{listed.list_path}/search?{query}")
    assert (answer.status, answer.body["field"]) == (422, field)


@pytest.mark.slow
def test_matches_are_bounded_in_bytes_and_continue_at_the_cursor(listed: Searched) -> None:
    ids = listed.add(["x" * 900_000] * 24)
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        events = listed.search(f"limit=100&cursor={quote(cursor)}")
        sizes = [len(json.dumps(data)) for _, data in events]
        assert sum(sizes) < MAX_MATCHES_SIZE
        found += listed.ids(events)
        progress = [data["searched"] for name, data in events if name != "matches"]
        assert progress == sorted(progress)
        cursor = events[-1][1]["cursor"]
    assert sorted(found) == sorted(ids)


def test_a_page_of_jobs_is_bounded_in_bytes_in_every_order(queue: Queue) -> None:
    ids = add_jobs(f"{number:02} {'x' * 900_000}" for number in range(24))
    for query in ("", "sort=due", "sort=priority&order=asc", f"name={INVOICE}&state=pending", "search=invoice"):
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            answer = queue.get(f"/jobs?limit=200&{query}&cursor={quote(cursor)}")
            assert len(answer.text) < (16 + 10) * MIB
            found += [job["_id"] for job in answer.body["jobs"]]
            assert answer.body["is_partial"] == (len(found) < 24), query
            cursor = answer.body["cursor"]
        assert sorted(found) == sorted(ids), query


def test_a_server_failure_during_a_search_is_the_last_event(queue: Queue) -> None:
    """The client reads nothing while the search would go on, so that the search waits for it."""
    add_jobs(["x" * 900_000] * 24)
    listed = Searched(queue, "/jobs", "_id", add_jobs)
    with listed.stream("state=pending&limit=100") as stream:
        events = stream.events()
        assert next(events)[0] == "matches"
        model.jobs().drop_index("jobs_in_a_state")  # `clean` makes it again
        *_, (name, data) = events
        assert (name, data["error"]) == ("error", "unavailable")


@pytest.mark.slow
def test_a_search_stops_when_its_client_disconnects(queue: Queue) -> None:
    """The client reads nothing after the first matches, so that the search waits for it before it reads the others."""
    others = 30_000
    for _ in range(others // 500):
        assert queue.post("/queue/batch", [{"type": "hay"}] * 500).status == 201
    add_messages(queue, ["x" * 900_000] * 16)  # the newest, which a search reads first
    with queue.redis() as client, monitored(client) as scripts:
        with Stream(queue.web, "/api/queue/main/messages/search", query="?filterType=mail") as stream:
            assert next(stream.events())[0] == "matches"
        eventually(lambda: scripts)
        seen: list[int] = []

        def has_stopped() -> bool:
            seen.append(len(scripts))
            return seen[-4:] == [seen[-1]] * 4

        eventually(has_stopped, every=0.5)
        assert seen[-1] < others / MAX_ENTRIES  # a search to the end needs more


@pytest.mark.parametrize(
    ("ends_after", "limits", "last"),
    [
        (9, [5, 4, 3], ("end", {"searched": 30, "total": 30, "found": 3, "cursor": None})),
        (2, [5, 4], ("progress", {"searched": 20, "total": 20, "found": 2, "cursor": "c"})),
    ],
)
def test_slices_are_read_for_what_is_missing_until_the_access_ends(
    ends_after: int, limits: list[int], last: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[int] = []

    def read(_: str | None, limit: int) -> SearchSlice:
        wanted.append(limit)
        return SearchSlice(matches=["1"], searched=10, cursor=None if len(wanted) == 3 else "c")

    async def search() -> list[Any]:
        monkeypatch.setattr(live_search, "access_check", lambda _: lambda: len(wanted) > ends_after)
        found = await live_search.search(cast(Request, None), read, cursor=None, limit=5, total=lambda: 12)
        return [part async for part in found.body_iterator]

    name, data = asyncio.run(search())[-1].decode().splitlines()[:2]
    assert (name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) == last
    assert wanted[: len(limits)] == limits


@pytest.mark.scale
def test_a_million_messages_are_searched_to_the_end_in_small_scripts(
    queue: Queue, figure: Callable[[str], None]
) -> None:
    oldest = queue.add(payload="needle")
    original = queue.add(payload={"to": "ada@example.org", "template": "welcome"})
    pid = queue.web.child.pid
    with queue.redis() as client:
        ((sid, fields),) = client.xrevrange(NAME, count=1)
        record: Any = client.hget(f"{NAME}_metadata", original)
        parts = [*fields[b"data"].split(original.encode()), *record.split(sid)]
        for begin in range(1, MILLION, 2_000):
            client.eval(COPY, 1, NAME, *parts, begin, begin + 1_999)
        client.config_resetstat()
        size, began, web_began, redis_began = resident(pid), time.monotonic(), cost(pid).seconds, redis_seconds(client)

        with Stream(queue.web, "/api/queue/main/messages/search", query="?search=needle") as stream:
            events = list(stream.events())

        took, grown = time.monotonic() - began, resident(pid) - size
        web_spent, redis_spent = cost(pid).seconds - web_began, redis_seconds(client) - redis_began
        scripts = scripts_of(client)

    progress = [data["searched"] for name, data in events if name != "matches"]
    assert [one["id"] for name, data in events if name == "matches" for one in data] == [oldest]
    assert events[-1][1] == {"searched": MILLION + 2, "total": MILLION + 2, "found": 1, "cursor": None}
    assert progress == sorted(progress)
    assert len(progress) > 10
    assert scripts > MILLION / MAX_ENTRIES
    assert grown < MAX_GROWTH
    figure(
        f"search of {MILLION:,} messages: {took:.1f} s; the web process {web_spent:.1f} CPU s, {grown:+.1f} MB; "
        f"{scripts:,} scripts, each {redis_spent / scripts * 1000:.1f} CPU ms of Redis; {len(progress)} reports"
    )


@contextmanager
def monitored(client: redis.Redis) -> Iterator[list[str]]:
    """Collect the scripts that list messages in the database of a client.

    Web processes run others in the background, and the server's own number includes other databases.
    """
    database, end = client.get_connection_kwargs()["db"], f"end of {id(client)}"
    lists: str = client.script_load(source("list"))
    found: list[str] = []
    with client.monitor() as monitor:

        def collect() -> None:
            for one in monitor.listen():
                if end in one["command"]:
                    return
                if int(one["db"]) == database and one["command"].startswith(f"EVALSHA {lists}"):
                    found.append(one["command"])

        thread = Thread(target=collect)
        thread.start()
        try:
            yield found
        finally:
            client.echo(end)
            thread.join()


def scripts_of(client: redis.Redis) -> int:
    """Return how many scripts the server has run."""
    stats: Any = client.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


def redis_seconds(client: redis.Redis) -> float:
    """Return the processor time of the thread that runs scripts."""
    stats: Any = client.info("cpu")
    return float(stats["used_cpu_user_main_thread"] + stats["used_cpu_sys_main_thread"])
