"""First pages of a place with 100,000 messages, as a browser asks for them: lists, filters, sorting and searches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import redis

from benchmarks.harness import Bench, Figure, Result, Way, expect, percentile
from benchmarks.message_queue.queues import LEVELS, Queue, connect, queue_options, server_clock
from benchmarks.web import Client, web
from queue_manager.core.settings import settings
from services.message_queue import MessageState, NewMessage, QueueAdmin, server_url
from services.message_queue.browser import SORT_FIELDS_BY_STATE
from services.message_queue.scripts import Scripts

MESSAGES = 100_000
TYPES = 7
BATCH_SIZE = 500
PAGE = 50
REQUESTS = 10  # of one way in one round
ONE_HOUR = 3600
SLOW_MICROSECONDS = 100  # scripts that take longer are asked for their time

Message = dict[str, Any]


@dataclass(frozen=True)
class Look:
    """What is asked for, which messages that are, and by what they are sorted, descending unless it says otherwise."""

    name: str
    query: str
    is_meant: Callable[[Message], bool] = lambda message: True
    sorted_by: str | None = None
    ascending: bool = False
    found: int = PAGE


@dataclass(frozen=True)
class Asked:
    """What a round of requests brought."""

    pages: list[list[Message]]
    seconds: list[float]
    longest_script: float
    """Milliseconds of the server."""


def main(bench: Bench) -> Result:
    return _run(bench, "main")


def processing(bench: Bench) -> Result:
    return _run(bench, "processing")


def dead(bench: Bench) -> Result:
    return _run(bench, "dead")


def _run(bench: Bench, place: MessageState) -> Result:
    count = bench.sized(MESSAGES)
    queue = Queue(settings().queue_name, connect())
    queue.client.flushall()
    _fill(queue, place, count)
    queue.client.config_set("slowlog-log-slower-than", SLOW_MICROSECONDS)
    queue.client.config_set("slowlog-max-len", 10_000)
    with web(QM_MESSAGE_QUEUE="true", QM_QUEUE_REDIS_URL=server_url()) as process:
        browser = _Browser(Client(process.port), place, queue.client)
        return bench.compare(
            f"message queue, pages of {place}",
            f"{count:,} messages of {LEVELS} priorities and {TYPES} types, in {place}; "
            f"{REQUESTS} requests a round over HTTP, one after the other",
            [
                Way(name=look.name, run=partial(browser.ask, look), check=partial(_check, look))
                for look in _looks(place, count)
            ],
            figures=[
                Figure(heading="p95, ms", of=lambda run: percentile(run.result.seconds, 95) * 1e3),
                Figure(heading="p50, ms", of=lambda run: percentile(run.result.seconds, 50) * 1e3),
                Figure(heading="most, ms", of=lambda run: max(run.result.seconds) * 1e3),
                Figure(heading="server ms each", of=lambda run: run.server_seconds / REQUESTS * 1e3),
                Figure(heading="longest script, ms", of=lambda run: run.result.longest_script),
            ],
            compared="times a list",
            server_clock=partial(server_clock, queue.client),
            notes=[
                f"A page has {PAGE} messages. A search that finds nothing ends after about 80 ms and says that it is",
                "partial.",
            ],
        )


def _looks(place: MessageState, count: int) -> Iterator[Look]:
    now = time.time()
    held = 1 if place == "processing" else 0
    yield Look("list", "")
    yield Look("list, the oldest first", "sortOrder=asc")
    yield Look("filter by type", "filterType=type-3", lambda message: message["type"] == "type-3")
    yield Look("filter by type, none", "filterType=none", found=0)
    yield Look("filter by priority", "filterPriority=3", lambda message: message["priority"] == 3)
    yield Look("filter by attempts", f"filterAttempts={held}", lambda message: message["attempt_count"] == held)
    yield Look("filter by attempts, none", "filterAttempts=9", found=0)
    yield Look("filter by date", f"startDate={now - ONE_HOUR}&endDate={now}")
    yield Look("filter by date, none", "endDate=2001-01-01", found=0)
    wanted = f"user{count - 7}@"  # among the newest, but the search goes on for more
    yield Look("search, one", f"search={wanted}", lambda message: wanted in message["payload"]["to"], found=1)
    yield Look("search, all", "search=WELCOME")
    yield Look("search, none", "search=nobody", found=0)
    yield Look("search, none, of a priority", "search=nobody&filterPriority=3", found=0)
    for field in SORT_FIELDS_BY_STATE[place]:
        for order in ("desc", "asc"):
            query = f"sortBy={field}&sortOrder={order}"
            yield Look(f"sort by {field}, {order}", query, sorted_by=field, ascending=order == "asc")


def _check(look: Look, asked: Asked) -> None:
    for page in asked.pages:
        expect(f"messages of {look.name}, each once", len({message["id"] for message in page}), look.found)
        expect(f"messages that {look.name} does not mean", [one for one in page if not look.is_meant(one)], [])
        if look.sorted_by:
            values = [message[look.sorted_by] for message in page]
            expect(f"order of {look.name}", values, sorted(values, reverse=not look.ascending))


class _Browser:
    """Asks a web process for pages, one after the other."""

    def __init__(self, web: Client, place: MessageState, client: redis.Redis) -> None:
        self._path, self._web, self._client = f"/api/queue/{place}/messages", web, client

    def ask(self, look: Look) -> Asked:
        pages, seconds = [], []
        self._client.slowlog_reset()
        for _ in range(REQUESTS):
            answer = self._web.get(f"{self._path}?limit={PAGE}&{look.query}")
            seconds.append(answer.seconds)
            pages.append(json.loads(answer.body)["messages"])
        slow: Any = self._client.slowlog_get(10_000)
        longest = max((one["duration"] for one in slow if one["command"].startswith(b"EVALSHA")), default=0)
        return Asked(pages=pages, seconds=seconds, longest_script=longest / 1e3)


def _fill(queue: Queue, place: MessageState, count: int) -> None:
    rest = _messages(count)
    people = QueueAdmin(Scripts(queue.client, queue=queue.name), queue_options())
    while batch := list(islice(rest, BATCH_SIZE)):
        added = queue.messages.enqueue_batch(batch)
        if place == "dead":
            people.move([one.id for one in added], to="dead", reason="no such user")
        elif place == "processing":
            for _ in added:
                queue.messages.dequeue()
    expect(f"messages in {place}", people.counts().of(place), count)


def _messages(count: int) -> Iterator[NewMessage]:
    for number in range(count):
        yield NewMessage(
            type=f"type-{number % TYPES}",
            payload={"to": f"user{number}@example.org", "template": "welcome", "number": number},
            priority=number * 7 // 3 % LEVELS,
            ack_timeout=ONE_HOUR,
            id=f"message-{number}",
        )
