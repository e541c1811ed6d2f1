"""Pages of messages: newest first, each message once, with any filter."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from dev.servers import Valkey
from queue_manager.core.clock import seconds
from services.message_queue import Filter, InvalidMessage, Json, MessageState, NewMessage, browser
from services.message_queue.browser import MESSAGE_STATES, SORT_FIELDS_BY_STATE
from tests.services.message_queue.message_lab import Lab

MESSAGES = 3_000


def fill(lab: Lab, count: int = MESSAGES, *, levels: int = 4) -> list[str]:
    """Enqueue messages over all priorities, many in the same millisecond; return their ids, the newest first."""
    random_ = random.Random(7)
    for begin in range(0, count, 500):
        lab.queue.enqueue_batch(
            [
                NewMessage(
                    type=f"t{number % 3}",
                    payload={"number": number},
                    priority=random_.randrange(levels),
                    id=f"{number:05}",
                )
                for number in range(begin, min(begin + 500, count))
            ]
        )
    entries = [
        (*map(int, sid.split(b"-")), priority)
        for priority, stream in enumerate(lab.streams)
        for sid, _ in lab.client.xrange(stream)
    ]
    assert len(entries) == count
    assert len({ms for ms, *_ in entries}) < count / 5, "too few share a millisecond to test that it does not matter"
    return [f"{number:05}" for number in range(count)]


def place_of(message: Any) -> tuple[int, int, int]:
    ms, sequence = map(int, message.fields["_stream_id"].split("-"))
    return ms, sequence, message.priority


@pytest.mark.slow
@pytest.mark.parametrize(("levels", "limit"), [(4, 1000), (4, 70), (12, 33)])
def test_pages_have_each_message_once_and_the_newest_first(server: Valkey, levels: int, limit: int) -> None:
    with Lab(server.url, levels=levels) as lab:
        ids = fill(lab, levels=levels)

        found = lab.everything("main", limit=limit)

        assert sorted(message.id for message in found) == ids
        places = [place_of(message)[:2] for message in found]
        assert places == sorted(places, reverse=True)


def test_added_and_removed_messages_do_not_shift_the_following_pages(lab: Lab) -> None:
    ids = fill(lab, 300)
    first = lab.contents.list("main", limit=100)
    lab.queue.enqueue("new")
    gone = lab.take().id

    rest = lab.everything("main", limit=100, cursor=first.cursor)

    found = [message.id for message in [*first.messages, *rest]]
    assert sorted({*found, gone}) == ids
    assert len(set(found)) == len(found)


def test_entries_can_be_skipped(lab: Lab) -> None:
    fill(lab, 60)
    everything = lab.ids("main")

    assert [message.id for message in lab.contents.list("main", limit=10, skip=25).messages] == everything[25:35]
    wanted = Filter(type="t1")
    of_type = [message.id for message in lab.contents.list("main", where=wanted).messages]
    assert [m.id for m in lab.contents.list("main", limit=5, skip=5, where=wanted).messages] == of_type[5:10]


@pytest.mark.parametrize("place", ["dead", "archived", "acknowledged"])
def test_archived_and_dead_messages_are_listed_in_the_order_in_which_they_came(lab: Lab, place: Any) -> None:
    ids = fill(lab, 90)
    random.Random(3).shuffle(ids)
    lab.contents.move(ids, to=place)
    (sort_by,) = SORT_FIELDS_BY_STATE[place]

    assert [message.id for message in lab.everything(place, limit=7)] == ids[::-1]
    assert [message.id for message in lab.everything(place, limit=7, sort_by=sort_by, ascending=True)] == ids


@pytest.mark.parametrize("is_ascending", [False, True])
def test_messages_that_leave_processing_between_two_pages_hide_no_others(lab: Lab, is_ascending: bool) -> None:
    lab.queue.enqueue_batch([NewMessage(type="job", id=f"{number:03}") for number in range(180)])
    taken = {one.id: one for _ in range(3) for one in lab.queue.receive_many(60)}  # 60 have the same deadline

    listed: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = lab.contents.list("processing", limit=50, ascending=is_ascending, cursor=cursor or None)
        listed += [one.id for one in page.messages]
        assert all(lab.queue.ack_many([(one.id, taken[one.id].lock_token) for one in page.messages]))
        cursor = page.cursor

    assert sorted(listed) == sorted(taken)


# Filters


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Filter(type="mail"), ["a", "c"]),
        (Filter(type="nothing"), []),
        (Filter(priority=0), ["a"]),
        (Filter(attempts=0), ["a", "b", "c"]),
        (Filter(attempts=1), []),
        (Filter(search="berlin"), ["b"]),
        (Filter(search="BERLIN"), ["b"]),
        (Filter(search="Ärger"), ["c"]),
        (Filter(search="%d+"), []),
        (Filter(search="mail"), ["a", "c"]),
        (Filter(search="no such user"), []),
        (Filter(type="mail", priority=2, search="ärger"), []),
        (Filter(type="mail", priority=2, search="rger"), ["c"]),
        (Filter(since=0), ["a", "b", "c"]),
        (Filter(since=4e9), []),
        (Filter(until=4e9), ["a", "b", "c"]),
        (Filter(until=0), []),
    ],
)
def test_filter_returns_only_matching_messages(lab: Lab, wanted: Filter, expected: list[str]) -> None:
    lab.queue.enqueue("mail", {"to": "ada"}, id="a")
    lab.queue.enqueue("sms", {"to": "Berlin"}, id="b", priority=1)
    lab.queue.enqueue("mail", {"to": "Ärger"}, id="c", priority=2)

    page = lab.contents.list("main", where=wanted)

    assert sorted(message.id for message in page.messages) == expected
    assert page.matched == len(expected)
    assert page.cursor is None
    assert not page.is_partial


@pytest.mark.parametrize(
    "search",
    ['{"to":"Ärger"', '"to": "Ärger","url"', "Ärger", '"url":"https://a.example/b"', "a.example/b", '"n":7', '"n": 7}'],
)
@pytest.mark.parametrize(
    "payload",
    [
        '{"to":"Ärger","url":"https://a.example/b","n":7}',  # as JavaScript writes it
        r'{"to": "\u00c4rger", "url": "https://a.example/b", "n": 7}',  # as Python writes it
        r'{"to":"\u00c4rger","url":"https:\/\/a.example\/b","n":7}',  # as PHP writes it
    ],
)
def test_payload_search_accepts_each_spelling_of_json(lab: Lab, payload: str, search: str) -> None:
    lab.queue.enqueue("mail", Json(payload), id="a")
    lab.queue.enqueue("mail", {"to": "Ada", "n": 8}, id="b")

    assert [message.id for message in lab.contents.list("main", where=Filter(search=search)).messages] == ["a"]
    assert lab.contents.count("main", Filter(search=search)).count == 1


@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize("search", ['the "old" é', r"C:\temp", "é", '"text"'])
def test_payload_search_accepts_a_text_with_characters_that_json_escapes(lab: Lab, search: str, is_ascii: bool) -> None:
    text = r'the "old" é in C:\temp'
    lab.queue.enqueue("mail", Json(json.dumps({"text": text}, ensure_ascii=is_ascii)), id="a")
    lab.queue.enqueue("mail", {"to": "Ada"}, id="b")

    assert [message.id for message in lab.contents.list("main", where=Filter(search=search)).messages] == ["a"]


def test_last_error_and_attempts_are_searched(lab: Lab) -> None:
    lab.queue.enqueue("mail", id="a", max_attempts=1)
    lab.queue.enqueue("mail", id="b", max_attempts=1)
    for reason in ("No such user", "Timeout"):
        message = lab.take()
        lab.queue.nack(message.id, message.lock_token, reason)

    found = lab.contents.list("dead", where=Filter(search="such USER", attempts=1))

    assert [message.id for message in found.messages] == ["a"]
    *_, replayed = lab.contents.replay_matching(Filter(search="such user"))
    assert replayed.outcomes == {"a": "MOVED"}
    assert lab.ids("dead") == ["b"]


@pytest.mark.slow
def test_filtered_page_ends_after_a_time_limit_and_continues_at_its_cursor(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser, "LIST_SEARCH_BUDGET", seconds(0))
    count = 12_000
    for begin in range(0, count, 500):
        lab.queue.enqueue_batch(
            [NewMessage(type="rare" if n % 4000 == 0 else "usual", id=f"{n}") for n in range(begin, begin + 500)]
        )

    first = lab.contents.list("main", where=Filter(type="rare"))
    assert first.is_partial
    assert first.cursor
    assert first.messages == []

    assert [message.id for message in lab.everything("main", where=Filter(type="rare"))] == ["8000", "4000", "0"]
    assert len(lab.everything("main", limit=500, where=Filter(type="usual"))) == count - 3


@pytest.mark.slow
def test_skipping_to_a_distant_page_has_a_time_limit(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(lab)
    ids = [message.id for message in lab.everything("main", limit=1000)]
    behind = lab.contents.list("main", skip=2_500, limit=50)
    assert ([message.id for message in behind.messages], behind.is_partial) == (ids[2_500:2_550], False)

    monkeypatch.setattr(browser, "LIST_SKIP_BUDGET", seconds(0))
    for skip, limit in ((0, 1000), (50, 50)):
        page = lab.contents.list("main", skip=skip, limit=limit)
        assert ([message.id for message in page.messages], page.is_partial) == (ids[skip : skip + limit], False)

    partial = lab.contents.list("main", skip=2_500, limit=50)
    assert (partial.messages, partial.is_partial) == ([], True)
    assert 0 < partial.matched < 2_500
    rest = lab.contents.list("main", limit=50, cursor=partial.cursor)
    assert [message.id for message in rest.messages] == ids[partial.matched : partial.matched + 50]


def test_large_messages_of_another_priority_do_not_shorten_the_slices(lab: Lab) -> None:
    small = [f"{number:03}" for number in range(300)]
    lab.queue.enqueue_batch([NewMessage(type="small", id=id) for id in small])
    large = Json('"' + "x" * 900_000 + '"')
    for id in ("large-1", "large-2", "large-3"):  # read in every slice, to know the order
        lab.queue.enqueue("large", large, id=id, priority=1)
    lab.client.config_resetstat()

    exported = [message.id for some in lab.contents.export("main") for message in some]
    matching = [id for some in lab.contents.matching_ids("main", Filter(type="large")) for id in some]

    assert exported == [*small, "large-1", "large-2", "large-3"]
    assert matching == ["large-1", "large-2", "large-3"]
    assert lab.client.info("commandstats")["cmdstat_evalsha"]["calls"] < 30  # with two small messages in each: 300


# Sorting


@pytest.mark.parametrize("place", MESSAGE_STATES)
def test_unknown_sort_field_is_refused_with_the_known_ones(lab: Lab, place: MessageState) -> None:
    for sort_by in ("id", "type", "attempt_count", "history"):
        with pytest.raises(InvalidMessage) as refusal:
            lab.contents.list(place, sort_by=sort_by)
        assert refusal.value.field == "sortBy"
        assert all(field in str(refusal.value) for field in SORT_FIELDS_BY_STATE[place])


# Messages of other systems


@pytest.mark.parametrize("place", ["dead", "archived", "acknowledged"])
def test_dead_letters_of_another_program_can_be_replayed_and_are_not_delivered_otherwise(lab: Lab, place: Any) -> None:
    stream = {"dead": "q_dlq", "archived": "q_archived", "acknowledged": "q_acknowledged"}[place]
    lab.client.xadd(stream, {"data": '{"id":"theirs","type":"job","payload":[1],"last_error":"boom","failed_at":7}'})

    [kept] = lab.contents.list(place).messages
    assert (kept.id, kept.type, kept.fields["last_error"], kept.fields["failed_at"]) == ("theirs", "job", "boom", 7)
    assert lab.queue.dequeue(type="job") is None
    assert lab.queue.dequeue() is None
    assert lab.contents.move(["theirs"], to="main", source=place) == {"theirs": "MOVED"}
    assert lab.take(type="job").payload == [1]


def test_messages_of_other_producers_are_listed_before_they_are_delivered(lab: Lab) -> None:
    lab.client.xadd("q_p2", {"data": '{"id":"theirs","type":"job","payload":[1]}'})
    lab.client.xadd("q_p2", {"data": "garbage"})
    lab.client.xadd("q_p2", {"no": "data"})

    found = {message.id: message for message in lab.contents.list("main").messages}

    assert found["theirs"].type == "job"
    assert found["theirs"].payload == [1]
    assert [message.payload for message in found.values() if not message.is_decodable] == ["garbage"]


@pytest.mark.parametrize("place", ["main", "processing"])
@pytest.mark.parametrize(
    "cursor", ["x", "-1", "1", "1.5", "inf", "1e400", "9" * 30, "1-1", "1-1/x", f"{'9' * 30}-1/0", "\ud800"]
)
def test_malformed_cursor_is_refused(lab: Lab, place: Any, cursor: str) -> None:
    lab.queue.enqueue("job")
    lab.queue.enqueue("job")
    lab.take()

    with pytest.raises(InvalidMessage) as refusal:
        lab.contents.list(place, cursor=cursor)

    assert refusal.value.field == "cursor"


def test_search_text_with_unpaired_surrogates_is_refused(lab: Lab) -> None:
    for wanted in (Filter(search="\ud800"), Filter(type="\ud800")):
        with pytest.raises(InvalidMessage):
            lab.contents.list("main", where=wanted)


def test_messages_that_arrive_after_a_selection_began_do_not_belong_to_it(lab: Lab) -> None:
    ids = [f"{number:02}" for number in range(12)]
    for id in ids:
        lab.queue.enqueue("job", "x" * 300_000, id=id)  # so large that several slices are read
    selected = lab.contents.matching_ids("main", Filter(search="x" * 10))
    first = next(selected)
    assert len(first) < len(ids)
    lab.queue.enqueue("job", "x" * 10, id="later")
    assert [*first, *(id for some in selected for id in some)] == ids


def test_an_update_to_null_restores_the_default_of_the_queue(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a", ack_timeout=60, max_attempts=1)
    changed = lab.contents.update("a", {"ackTimeout": None, "maxAttempts": None})
    own = [{name for name in message.fields if name.startswith("custom_")} for message in changed]
    assert own == [{"custom_ack_timeout", "custom_max_attempts"}, set()]
