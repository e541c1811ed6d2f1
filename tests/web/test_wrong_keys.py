"""Many wrong keys from one address get delayed responses; nobody else is affected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queue_manager.web.auth import wrong_keys
from queue_manager.web.auth.wrong_keys import WrongKeys
from queue_manager.web.http.errors import ApiError
from tests.web.credentials import KEYS, OPERATOR, UNKNOWN, VIEWER, log_in
from tests.web.listener import ConnectionRefused, Listener
from tests.web.web_process import SECRET, Answer, Web, forked_web, token

FREE = 10  # different wrong keys in a minute


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with forked_web(tmp_path_factory.mktemp("web"), QM_API_KEYS=KEYS) as process:
        yield process


_addresses = (f"203.0.113.{number}" for number in range(1, 255))


@pytest.fixture
def address() -> dict[str, Any]:
    """The headers of a client that nobody else is, as a proxy on this machine sends them."""
    return {"X_Forwarded_For": next(_addresses)}


def wrong(number: int) -> str:
    return f"a-wrong-key-of-the-tests-{number:016}"


def ask(process: Web, key: str, **headers: str) -> Answer:
    return process.get("/schedule", X_API_KEY=key, **headers)


def test_many_wrong_keys_get_429_after_growing_delays(guarded: Web, address: dict[str, str]) -> None:
    answers = [ask(guarded, wrong(number), **address) for number in range(FREE + 5)]
    assert [answer.status for answer in answers] == [401] * FREE + [429] * 5
    for number, answer in enumerate(answers[FREE:], start=1):
        assert answer.body["error"] == "too many wrong keys"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.took >= 0.1 * number
    logged = [line for line in guarded.log.splitlines() if f"address={address['X_Forwarded_For']} " in line]
    assert len(logged) == 1
    assert "Many wrong keys from one address" in logged[0]
    assert "a-wrong-key" not in guarded.log


def test_right_keys_and_other_addresses_are_not_delayed(guarded: Web, address: dict[str, str]) -> None:
    for number in range(FREE + 2):
        ask(guarded, wrong(number), **address)
    assert ask(guarded, wrong(99), **address).status == 429
    assert ask(guarded, VIEWER, **address).status == 200
    assert log_in(guarded, OPERATOR, **address).status == 303
    assert ask(guarded, wrong(99), X_Forwarded_For="198.51.100.1").status == 401
    assert ask(guarded, wrong(99)).status == 401


def test_all_of_an_ipv6_network_is_one_address(guarded: Web) -> None:
    for number in range(FREE):
        assert ask(guarded, wrong(number), X_Forwarded_For=f"2001:db8::{number:x}").status == 401
    assert ask(guarded, wrong(99), X_Forwarded_For="2001:db8::ffff").status == 429
    assert ask(guarded, wrong(99), X_Forwarded_For="2001:db8:0:1::1").status == 401


def test_clients_over_ipv4_are_told_apart_by_a_process_that_listens_on_ipv6(guarded: Web) -> None:
    one, other = next(_addresses), next(_addresses)
    for number in range(FREE):
        assert ask(guarded, wrong(number), X_Forwarded_For=f"::ffff:{one}").status == 401
    assert ask(guarded, wrong(98), X_Forwarded_For=f"::ffff:{one}").status == 429
    assert ask(guarded, wrong(99), X_Forwarded_For=f"::ffff:{other}").status == 401
    assert f"address={one} " in guarded.log


def test_one_repeated_wrong_key_does_not_count_as_guessing(guarded: Web, address: dict[str, str]) -> None:
    assert {ask(guarded, UNKNOWN, **address).status for _ in range(5 * FREE)} == {401}


def test_a_wrong_key_repeated_a_thousand_times_in_a_minute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrong_keys, "DELAY_STEP", 0.0)
    counted = WrongKeys()

    async def repeat() -> None:
        for _ in range(1_000):
            await counted.count(b"one wrong key", "203.0.113.1")
        with pytest.raises(ApiError) as refused:
            await counted.count(b"one wrong key", "203.0.113.1")
        assert refused.value.status == 429
        await counted.count(b"one wrong key", "203.0.113.2")

    asyncio.run(repeat())


async def is_refused(counted: WrongKeys, number: int, address: str = "203.0.113.1") -> bool:
    try:
        await counted.count(b"%08d" % number, address)
    except ApiError:
        return True
    return False


def test_wrong_keys_of_the_minute_before_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrong_keys, "WINDOW", 0.0)
    counted = WrongKeys()

    async def guess() -> None:
        for number in range(2 * FREE):
            assert not await is_refused(counted, number)

    asyncio.run(guess())


def test_the_address_whose_last_wrong_key_is_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrong_keys, "DELAY_STEP", 0.0)
    monkeypatch.setattr(wrong_keys, "MAX_ADDRESSES", 2)
    counted, first, second, third = WrongKeys(), "203.0.113.1", "203.0.113.2", "203.0.113.3"

    async def guess() -> None:
        for address in (first, second):
            for number in range(FREE):
                assert not await is_refused(counted, number, address)
        assert await is_refused(counted, FREE, first)
        assert not await is_refused(counted, 0, third)
        assert await is_refused(counted, FREE, first)
        assert not await is_refused(counted, FREE, second)

    asyncio.run(guess())


def test_only_a_few_refusals_are_delayed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrong_keys, "MAX_DELAYED", 1)
    counted, delays, woken = WrongKeys(), list[float](), asyncio.Event()

    async def wait(seconds: float) -> None:
        delays.append(seconds)
        await woken.wait()

    async def guess() -> None:
        for number in range(FREE):
            await is_refused(counted, number)
        monkeypatch.setattr(asyncio, "sleep", wait)
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(is_refused(counted, FREE))
            group.create_task(is_refused(counted, FREE)).add_done_callback(lambda _: woken.set())
        for _ in range(30):
            assert await is_refused(counted, FREE)

    asyncio.run(guess())
    assert delays == pytest.approx([0.1, *(min(excess * 0.1, 2.0) for excess in range(3, 33))])


def test_wrong_keys_at_the_log_in_and_socket_io_count_too(guarded: Web, address: dict[str, Any]) -> None:
    for number in range(FREE - 2):
        assert log_in(guarded, wrong(number), **address).status == 401
    for number in range(FREE - 2, FREE):
        with pytest.raises(ConnectionRefused, match="unknown or has expired"):
            Listener(guarded.port, {"token": wrong(number)}, **address)
    with pytest.raises(ConnectionRefused, match="Too many wrong keys"):
        Listener(guarded.port, {"token": wrong(99)}, **address)
    page = log_in(guarded, wrong(100), Accept="text/html", **address)
    assert (page.status, "Too many wrong keys" in page.text) == (429, True)
    assert int(page.headers["retry-after"]) >= 1
    with Listener(guarded.port, {"token": VIEWER}, **address) as client:
        assert client.call("join", "a") == {"joined": ["a"]}


def test_tokens_of_accounts_are_not_counted_as_wrong_keys(tmp_path: Path) -> None:
    with forked_web(tmp_path, QM_API_KEYS=KEYS, SOCKETIO_TOKEN_SECRET=SECRET) as process:
        for number in range(2 * FREE):
            with Listener(process.port, {"token": token(f"account-{number}")}) as client:
                assert client.call("join", f"account-{number}") == {"joined": [f"account-{number}"]}
        assert ask(process, wrong(0)).status == 401
        assert "Wrong keys" not in process.log


def test_a_key_of_few_different_characters_stops_the_start(tmp_path: Path) -> None:
    given = "o" * 40
    keys = json.dumps([{"name": "weak", "key": given, "role": "viewer"}])
    with forked_web(tmp_path, QM_API_KEYS=keys) as process:
        assert process.child.wait(30) == 2
    assert "[0].key: 32 to 512 visible ASCII characters, with at least 6 different ones" in process.log
    assert process.log.count("\n") == 1
    assert given not in process.log
