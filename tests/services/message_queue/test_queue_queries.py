"""Orders, filters, counts and replays over large states: in slices, and equal to a plain read."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import pytest

from dev.servers import Valkey
from queue_manager.core.clock import seconds
from services.message_queue import Filter, Message, MessageState, NewMessage, browser
from services.message_queue.browser import MESSAGE_STATES, SORT_FIELDS_BY_STATE
from tests.services.message_queue.message_lab import Lab

SLICE = 700  # entries of one call, see reading.lua
BLOCK = 160  # by which the last block of a slice may pass it
ONE_BY_ONE = """
for _, id in ipairs(redis.call('HKEYS', KEYS[1])) do
  cjson.decode(redis.call('HGET', KEYS[1], id))
end
"""


def fill(lab: Lab, count: int, *, type: str = "job", **options: Any) -> list[str]:
    """Enqueue messages, over all priorities unless one is given; return their ids in that order."""
    random_ = random.Random(11)
    ids = [f"{type}-{number:06}" for number in range(count)]
    for begin in range(0, count, 500):
        lab.queue.enqueue_batch(
            [
                NewMessage(type=type, payload=id, id=id, **{"priority": random_.randrange(lab.levels), **options})
                for id in ids[begin : begin + 500]
            ]
        )
    return ids


def bury(lab: Lab, ids: Sequence[str]) -> None:
    for begin in range(0, len(ids), 500):
        lab.contents.move(ids[begin : begin + 500], to="dead", reason="boom")


def ids_of(messages: Sequence[Message]) -> list[str]:
    return [message.id for message in messages]


# Orders that entries have


@pytest.mark.parametrize("limit", [7, 1000])
@pytest.mark.parametrize("ascending", [True, False])
def test_list_is_ordered_by_priority_and_then_newest_first(lab: Lab, ascending: bool, limit: int) -> None:
    fill(lab, 400)
    newest_first = lab.everything("main")

    first = lab.contents.list("main", limit=limit, sort_by="priority", ascending=ascending)
    found = lab.everything("main", limit=limit, sort_by="priority", ascending=ascending)

    assert ids_of(found) == ids_of(sorted(newest_first, key=lambda m: m.priority, reverse=not ascending))
    assert (first.is_partial, first.cursor is None) == (False, limit == 1000)


@pytest.mark.parametrize("order", [{"sort_by": "deadline_at", "ascending": True}, {}])
def test_messages_in_processing_are_paged_by_deadline_although_many_share_one(lab: Lab, order: dict[str, Any]) -> None:
    fill(lab, 60)
    held = [lab.take(ack_timeout=100).id for _ in range(60)]
    deadlines = {id: 5_000_000_000_000 + number // 20 for number, id in enumerate(held)}
    lab.client.zadd("q:deadlines", deadlines)

    for limit in (7, 20, 1000):
        found = ids_of(lab.everything("processing", limit=limit, **order))
        assert sorted(found) == sorted(held)
        at = [deadlines[id] for id in found]
        assert at == sorted(at, reverse=not order)


def test_priority_filter_finds_few_behind_many(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "LIST_SEARCH_BUDGET", seconds(0))
    few = fill(lab, 3, type="urgent", priority=3)
    fill(lab, 3_000, priority=0)

    page = lab.contents.list("main", where=Filter(priority=3))

    assert (ids_of(page.messages), page.is_partial) == (few[::-1], False)


# The same as a plain reading


def mixed(lab: Lab) -> None:
    """Messages of all kinds and in all states: requeued, of other producers, duplicate, and malformed."""
    random_ = random.Random(5)
    now = lab.now_ms() / 1000
    for number in range(240):
        lab.queue.enqueue(
            random_.choice(["mail", "sms", "a/b", 'q"t']),
            {"to": random_.choice(["Ada", "Böb", "a\\b", "x" * 300]), "n": number},
            priority=random_.randrange(lab.levels),
            max_attempts=random_.choice([None, 1, 2]),
            id=f"own-{number}",
        )
    for number in range(90):
        theirs: dict[str, Any] = {"id": f"their/{number}", "type": random_.choice(["mail", "ü"])}
        if number % 2:
            theirs["created_at"] = now - random_.choice([0, 3000, 90_000]) + random_.choice([0, 600])
        theirs["payload"] = {"to": "Ada"}
        stream = random_.choice(["q", "q_p2", "q_dlq", "q_archived"])
        lab.client.xadd(stream, {"data": json.dumps(theirs, indent=random_.choice([None, 1]))})
    for stream, data in (("q", "garbage"), ("q_p1", '{"id":"own-1"}'), ("q_dlq", b"\xff\xfe"), ("q_p3", "[1]")):
        lab.client.xadd(stream, {"data": data})
    for number in range(70):
        message = lab.take(type="mail" if number % 7 == 0 else None)
        match number % 4:
            case 0:
                lab.queue.ack(message.id, message.lock_token)
            case 1 | 2:
                lab.queue.nack(message.id, message.lock_token, random_.choice(["No user Ada", 'said "no" \\o/', "ü"]))
    lab.contents.move(lab.ids("main")[10:40], to="archived")
    lab.contents.replay(lab.ids("dead")[:5])
    for place in MESSAGE_STATES:
        lab.ids(place)  # every message has its record


def is_meant(message: Message, wanted: Filter) -> bool:
    said = message.fields
    in_texts = f"{message.payload_json}\n{message.id}\n{message.type}\n{said.get('last_error', '')}".lower()
    return (
        wanted.type in (None, message.type)
        and wanted.priority in (None, message.priority)
        and wanted.attempts in (None, message.attempt)
        and (wanted.since is None or said["created_at"] >= wanted.since)
        and (wanted.until is None or said["created_at"] <= wanted.until)
        and (wanted.search is None or wanted.search.lower() in in_texts)
    )


def filters(now: float) -> Iterator[Filter]:
    yield from (Filter(type=type) for type in ("mail", "a/b", 'q"t', "ü", "none", ""))
    yield from (Filter(priority=priority) for priority in (0, 2, 9))
    yield from (Filter(attempts=attempts) for attempts in (0, 1, 2))
    yield from (Filter(since=now - ago) for ago in (86_400, 1_000, 5, -700))
    yield from (Filter(until=now - ago) for ago in (86_400, 1_000, -700))
    searched = ("ADA", "own-1", "their/3", "said", "xxx", "mail", "no user", "payload", "attempt_count", "garbage")
    yield from (Filter(search=text) for text in searched)
    yield Filter(type="mail", priority=2, search="ada", since=now - 1_000)


@pytest.mark.slow
def test_filters_find_and_count_the_same_as_a_plain_read(lab: Lab) -> None:
    mixed(lab)
    now = lab.now_ms() / 1000
    for place in MESSAGE_STATES:
        everything = lab.everything(place)
        assert len(everything) == lab.contents.count(place).count
        for wanted in filters(now):
            expected = [message.id for message in everything if is_meant(message, wanted)]
            for limit in (1000, 9):
                assert ids_of(lab.everything(place, where=wanted, limit=limit)) == expected, (place, wanted)
            counted = lab.contents.count(place, wanted)
            assert (counted.count, counted.is_complete) == (len(expected), True), (place, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("ascending", [True, False])
def test_orders_equal_those_of_a_plain_read(lab: Lab, ascending: bool) -> None:
    mixed(lab)
    for place, fields in SORT_FIELDS_BY_STATE.items():
        everything = ids_of(lab.everything(place))
        for sort_by in fields:
            found = lab.everything(place, limit=7, sort_by=sort_by, ascending=ascending)
            assert sorted(ids_of(found)) == sorted(everything), place
            if sort_by == "created_at":  # the time of arrival: messages of other producers name any time
                assert ids_of(found) == everything[:: -1 if ascending else 1]
            else:
                values = [message.fields[sort_by] for message in found if sort_by in message.fields]
                assert values == sorted(values, reverse=not ascending), place


# Counting and replaying


def test_count_reports_that_it_reached_its_time_limit(lab: Lab) -> None:
    fill(lab, 3 * SLICE)

    counted = lab.contents.count("main", Filter(type="job"), within=seconds(0))

    assert not counted.is_complete
    assert SLICE <= counted.count <= SLICE + BLOCK
    assert lab.contents.count("main", Filter(type="job")).count == 3 * SLICE


@pytest.mark.slow
def test_matching_dead_letters_are_replayed_in_the_order_of_their_failures(lab: Lab) -> None:
    ids = fill(lab, 2_500, priority=0)
    others = fill(lab, 300, type="other", priority=0)
    dead = [*ids, *others]
    random.Random(8).shuffle(dead)
    bury(lab, dead)

    *_, replayed = lab.contents.replay_matching(Filter(type="job"))

    assert (replayed.moved, replayed.failed, replayed.is_complete, replayed.outcomes) == (2_500, 0, True, None)
    assert ids_of(lab.everything("main", ascending=True)) == [id for id in dead if id.startswith("job")]
    assert lab.contents.counts().dead == 300


@pytest.mark.slow
def test_message_that_fails_again_during_a_replay_is_replayed_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = fill(lab, 2_500)
    bury(lab, ids)
    run = lab.scripts.run

    def fail_again(name: str, *arguments: Any) -> Any:
        answer = run(name, *arguments)
        if name == "move":
            run("move", "main", "dead", "again", *arguments[3:])
        return answer

    monkeypatch.setattr(lab.scripts, "run", fail_again)
    *_, replayed = lab.contents.replay_matching(Filter(type="job"))

    assert (replayed.moved, replayed.failed, replayed.is_complete) == (2_500, 0, True)
    letters = lab.everything("dead", ascending=True)
    assert ids_of(letters) == ids
    assert {len(message.fields["history"]) for message in letters} == {1}


def test_replay_stops_at_its_time_limit_and_continues_the_next_time(lab: Lab) -> None:
    bury(lab, fill(lab, 300))

    *_, stopped = lab.contents.replay_matching(Filter(), within=seconds(0))
    assert (stopped.moved, stopped.is_complete) == (0, False)
    assert [so_far.moved for so_far in lab.contents.replay_matching(Filter())] == [0, 100, 200, 300]


# What it costs


@pytest.fixture(scope="module")
def count() -> int:
    return 4_500


@dataclass(frozen=True)
class Cost:
    scripts: int
    commands: int
    """Of those that the scripts gave."""
    spent: float
    """Microseconds of the server."""


def cost(lab: Lab, look: Callable[[], object], *, script: str = "evalsha") -> Cost:
    lab.client.config_resetstat()
    look()
    stats = lab.client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    scripts = calls.pop(script, 0)
    return Cost(scripts, sum(calls.values()), stats[f"cmdstat_{script}"]["usec"])


def one_by_one(lab: Lab) -> None:
    """Read every record by itself, and do nothing else."""
    lab.client.eval(ONE_BY_ONE, 1, "q_metadata")


@pytest.mark.scale
@pytest.mark.parametrize("place", ["main", "processing", "dead"])
def test_searching_all_messages_costs_little_more_than_reading_their_records(
    server: Valkey, kind: str, place: MessageState, count: int, figure: Callable[[str], None]
) -> None:
    with Lab(server.url, levels=10) as lab:
        ids = fill(lab, count)
        if place == "processing":
            while lab.queue.dequeue() is not None:
                pass
        elif place == "dead":
            bury(lab, ids)
        looks: dict[str, Callable[[], object]] = {
            "count by type": lambda: lab.contents.count(place, Filter(type="other")),
            "count by attempts": lambda: lab.contents.count(place, Filter(attempts=9)),
            "search": lambda: lab.contents.count(place, Filter(search="nobody at all")),
        }
        for name, look in looks.items():
            cost(lab, look)  # loads the scripts
            found: list[Cost] = []
            plain: list[float] = []
            times = inf
            while len(found) < 3 or (times >= 8 and len(found) < 12):  # other work on the machine only adds to either
                found.append(cost(lab, look))
                plain.append(cost(lab, lambda: one_by_one(lab), script="eval").spent)
                times = min(one.spent for one in found) / min(plain)
            if kind == "valkey":
                figure(f"message queue: {name}, {place}: {times:.1f} times as long as reading each record by itself")
            assert times < 8, (name, place)
            # Records of delivered messages have a history, so the bytes of a slice may be read before its entries are.
            most = count // SLICE + (3 if place == "processing" else 2)
            assert count // (SLICE + BLOCK) <= found[0].scripts <= most
            needs_entries = (name, place) == ("search", "processing")  # of what is held only the ids are in a row
            assert found[0].commands < count * (1.2 if needs_entries else 0.2), (name, place)


def test_first_pages_read_little(server: Valkey, count: int) -> None:
    with Lab(server.url, levels=10) as lab:
        fill(lab, count)
        for options in ({}, {"sort_by": "priority"}, {"ascending": True}, {"where": Filter(type="job")}):
            lab.contents.list("main", **options)  # loads the script
            found = cost(lab, lambda: lab.contents.list("main", **options))  # noqa: B023 - called at once
            assert found.scripts == 1
            assert found.commands < 100, options
