"""Malformed messages and broadcasts: they are kept, and the messages after them are delivered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.utils.json import dumps
from redis import Redis

from dev.servers import Valkey
from queue_manager.broker import dead_letters
from tests.broker.celery_process import CeleryProcess, lines
from tests.broker.guard_app import client_app
from tests.broker.taking import Taker, connected, envelope, held
from tests.eventually import eventually

TASK = "guard_app.write"
ARGUMENTS = [["line", "/dev/null"], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]


def changed(path: str, value: Any) -> bytes:
    """Return a message of a task with the value at `path` replaced, or without it if `value` is `...`."""
    message = envelope(ARGUMENTS, id="an-id", task=TASK, lang="py", retries=0, eta=None, expires=None)
    place: Any = message
    *way, last = path.split(".")
    for name in way:
        place = place[name]
    if value is ...:
        place.pop(last, None)
    else:
        place[last] = value
    return json.dumps(message).encode()


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


UNREADABLE = {
    "nothing": b"",
    "bytes": b"\xff\xfe\x00garbage",
    "undecodable text": changed("headers.argsrepr", "x").replace(b'"x"', b'"\xff"'),
    "no JSON": b"{nearly",
    "a second value": b'{}, "", "elsewhere"]',
    "a list": b"[1, 2]",
    "a number": b"17",
    "null": b"null",
    "a marker": b'{"__type__": "decimal", "__value__": "1"}',
    "a forged marker": b'{"__type__": "uuid", "__value__": {"hex": [1]}}',
    "an unknown marker": b'{"__type__": [], "__value__": 1}',
    "a long number": b"1" * 5000,
    "deep": b"[" * 100_000,
    "deep headers": changed("headers.deep", nested(400)),
    **{f"no {name}": changed(name, ...) for name in ("body", "headers", "properties", "properties.delivery_info")},
    **{f"{name} is 1": changed(name, 1) for name in ("body", "headers", "properties", "properties.delivery_info")},
    "no content type": changed("content-type", ...),
    "content encoding is a list": changed("content-encoding", []),
    "body is null": changed("body", None),
    "no exchange": changed("properties.delivery_info", {"routing_key": "q"}),
}
REFUSED_BY_CELERY = {
    "unknown body encoding": changed("properties.body_encoding", "rot13"),
    "body encoding is 1": changed("properties.body_encoding", 1),
    "body is no base64": changed("properties.body_encoding", "base64"),
    "unknown compression": changed("headers.compression", "application/none"),
    "unknown content type": changed("content-type", "application/none"),
    "pickle": changed("content-type", "application/x-python-serialize"),
    "body is no JSON": changed("body", "{nearly"),
    "body is a number": changed("body", "1"),
    "no task": changed("headers.task", ...),
    "no id": changed("headers.id", ...),
    "unknown task": changed("headers.task", "shop.no_such_task"),
    "task is a list": changed("headers.task", ["guard_app.write"]),
    "surrogate in the name": changed("headers.task", "\ud800"),
    "deep arguments": changed("body", json.dumps([nested(400), {}, {}])),
    "options are a number": changed("body", json.dumps([[], {}, 5])),
    "timelimit is no float": changed("headers.timelimit", [10**400, None]),
    "eta is an object": changed("headers.eta", {"at": 1}),
    "eta is no time": changed("headers.eta", "tomorrow"),
    "expires is a list": changed("headers.expires", [1]),
}
"""Readable, and nothing that this application can do."""

FAILING = {
    "body is an object": changed("body", '{"args": []}'),
    "unknown content encoding": changed("content-encoding", "klingon"),
    "args are a number": changed("body", json.dumps([1, {}, {}])),
    "args are a text": changed("body", json.dumps(["abc", {}, {}])),
    "kwargs are a list": changed("body", json.dumps([[], [], {}])),
    "timelimit is a text": changed("headers.timelimit", "soon"),
    "timelimit is one number": changed("headers.timelimit", 5),
    "retries is a text": changed("headers.retries", "many"),
    "retries is negative": changed("headers.retries", -(10**30)),
    "id is an object": changed("headers.id", {"id": 1}),
    "eta before all time": changed("headers.eta", "0001-01-01T00:00:00"),
    "eta after all time": changed("headers.eta", "9999-12-31T23:59:59"),
    "priority is a text": changed("properties.priority", "high"),
    "stamps are a number": changed("headers.stamped_headers", 1),
    "shadow is a list": changed("headers.shadow", [1]),
    "root is an object": changed("headers.root_id", {"a": 1}),
    "a decimal as id": changed("headers.id", {"__type__": "decimal", "__value__": "1"}),
    "arguments of the largest depth": changed("body", json.dumps([nested(299), {}, {}])),
    "stamps of the largest depth": changed("headers.stamps", {"deep": nested(297)}),
    "a marker as args": changed("body", '[{"__type__": "bytes", "__value__": "x"}, {}, {}]'),
}
"""Accepted at first: they fail as tasks, or are done, or wait. What is asked is that the worker goes on."""

HEADERS = [
    *("id", "task", "shadow", "eta", "expires", "root_id", "parent_id", "group", "argsrepr", "kwargsrepr", "origin"),
    *("retries", "replaced_task_nesting", "group_index", "timelimit", "stamped_headers", "stamps", "lang", "meth"),
    *("ignore_result", "redelivered", "correlation_id", "reply_to", "callbacks", "compression"),
]
VALUES = [
    1,
    -1,
    1e308,
    True,
    "x",
    "\ud800",
    [],
    [None],
    {},
    {"a": {"b": 1}},
    [[]],
    {"__type__": "bytes", "__value__": "x"},
]


def first_protocol(name: str, value: Any) -> bytes:
    """Return a message of Celery's first protocol, where the body has the headers' part."""
    fields = {"id": "an-id", "task": TASK, "args": ["line", "/dev/null"], "kwargs": {}, name: value}
    return changed("headers", {}).replace(
        json.dumps(json.dumps(ARGUMENTS)).encode(), json.dumps(json.dumps(fields)).encode()
    )


MIXED = [
    *(changed(f"headers.{name}", value) for name in HEADERS for value in VALUES),
    *(changed(f"properties.{name}", value) for name in ("correlation_id", "reply_to", "priority") for value in VALUES),
    *(first_protocol(name, value) for name in (*HEADERS, "args", "kwargs", "utc") for value in VALUES[::2]),
]


@pytest.mark.parametrize("message", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_unreadable_message_is_dead_lettered(server: Valkey, client: Redis, message: bytes) -> None:
    with connected(server.url) as connection:
        client.rpush("q", message)
        client.lpush("q", changed("headers.id", "behind"))

        taker = Taker(connection, "q")
        taker.take(timeout=0.1)

        assert [taken.headers["id"] for taken in taker.taken] == ["behind"]
        [letter] = dead_letters.latest(client)
        assert letter.message == message.decode("utf-8", "backslashreplace")
        assert letter.queue == "q"
        assert letter.reason
        assert held(client) == (1, 1)


def test_only_the_newest_dead_letters_are_kept(server: Valkey, client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "MAX_DEAD_LETTERS", 3)
    with connected(server.url) as connection:
        client.lpush("q", *(b"garbage %d" % number for number in range(5)))
        Taker(connection, "q").take(timeout=0.1)
    assert [letter.message for letter in dead_letters.latest(client)] == ["garbage 4", "garbage 3", "garbage 2"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PATHS = [
    *("body", "content-type", "content-encoding", "headers", "properties", "headers.task", "headers.compression"),
    *("properties.body_encoding", "properties.delivery_info", "properties.delivery_tag", "properties.priority"),
    *("properties.delivery_info.exchange", "properties.delivery_info.routing_key", "properties.put_aside"),
]
MUTATED = st.builds(changed, st.sampled_from(PATHS), JSON | st.just(...)) | st.binary(max_size=60)


@pytest.mark.slow
@given(messages=st.lists(MUTATED, max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_message_is_delivered_or_kept(server: Valkey, client: Redis, messages: list[bytes]) -> None:
    client.flushall()
    with connected(server.url) as connection:
        for message in [*messages, changed("headers.id", "behind")]:
            client.lpush("q", message)

        taker = Taker(connection, "q")
        eventually(lambda: accounted(taker, client) > len(messages))

        assert accounted(taker, client) == len(messages) + 1
        assert any(taken.headers.get("id") == "behind" for taken in taker.taken)
        assert held(client) == (len(taker.taken),) * 2
    assert client.llen("q") + dead_letters.count(client) == len(messages) + 1


def accounted(taker: Taker, client: Redis) -> int:
    taker.take(timeout=0.02)
    return len(taker.taken) + dead_letters.count(client)


def test_message_whose_dispatch_fails_once_is_redelivered(server: Valkey, client: Redis) -> None:
    class Failing(Taker):
        failures = 0

        def received(self, message: Any) -> None:
            if message.headers["id"] in ("once", "always") and self.failures < (3 if "always" in self.ids else 1):
                self.failures += 1
                raise RuntimeError("not today")
            super().received(message)

        ids: tuple[str, ...] = ()

    with connected(server.url) as connection:
        for name in ("once", "behind"):
            client.lpush("q", changed("headers.id", name))
        taker = Failing(connection, "q")
        taker.drain()
        assert [taken.headers["id"] for taken in taker.taken] == ["behind", "once"]
        assert dead_letters.count(client) == 0

        taker.ids = ("always",)
        client.lpush("q", changed("headers.id", "always"))
        taker.drain()
        [letter] = dead_letters.latest(client)
        assert "not today" in letter.reason
        assert held(client) == (2, 2)


@pytest.mark.processes
def test_worker_survives_all_malformed_messages(server: Valkey, client: Redis, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    nasty = {**UNREADABLE, **REFUSED_BY_CELERY}
    worker = CeleryProcess(
        *("worker", "--concurrency=1", "--queues=q", "--loglevel=warning", "-E"),
        log=tmp_path / "log",
        broker_url=server.url,
    )
    with client_app(server.url) as app:
        for message in [*nasty.values(), *FAILING.values()]:
            client.lpush("q", message)
            app.send_task(TASK, ["behind", str(diary)], queue="q")
        for message in MIXED:
            client.lpush("q", message)
        with worker:
            number = len(nasty) + len(FAILING)
            eventually(lambda: diary.exists() and diary.read_text().count("behind") == number)
            for broadcast in (b"\xff", b"[]", b"1", b"{}", b"[" * 100_000, b'{"body": 1, "properties": {}}'):
                client.publish("/0.celery.pidbox", broadcast)
            app.send_task(TASK, ["last", str(diary)], queue="q")
            eventually(lambda: "last" in diary.read_text())
            assert app.control.inspect(timeout=5).ping()

            # What neither was refused nor failed waits for its time.
            eventually(lambda: held(client) <= (1, 1))
            kept = [letter.message for letter in dead_letters.latest(client, limit=dead_letters.MAX_DEAD_LETTERS)]
            missing = [name for name, message in nasty.items() if not is_among(message, kept)]
            assert missing == []
            assert worker.is_alive
            assert "Unrecoverable" not in worker.log


@pytest.mark.processes
def test_ids_of_a_task_may_be_uuids(server: Valkey, client: Redis, tmp_path: Path) -> None:
    """Stock Celery executes such tasks."""
    diary = tmp_path / "diary"
    names = ["id", "root_id", "parent_id", "group"]
    for name in [*names, "last"]:
        headers = {"id": "an-id", "task": TASK, name: uuid4()}
        client.lpush("q", dumps(envelope([[name, str(diary)], {}, {}], **headers)))
    options = ("--concurrency=1", "--queues=q", "--loglevel=warning", "-E")
    with CeleryProcess("worker", *options, log=tmp_path / "log", broker_url=server.url):
        eventually(lambda: "last" in lines(diary))

    assert lines(diary) == [*names, "last"]
    assert dead_letters.count(client) == 0


def is_among(message: bytes, letters: list[str]) -> bool:
    text = message.decode("utf-8", "backslashreplace")
    if text in letters:
        return True
    try:  # handed over twice: then it says so
        wanted = json.loads(message)
        wanted["properties"]["put_aside"] = True
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    return any(same(wanted, json.loads(letter)) for letter in letters if '"put_aside"' in letter)


def same(wanted: Any, found: Any) -> bool:
    found["properties"]["delivery_tag"] = wanted["properties"]["delivery_tag"]
    return bool(wanted == found)
