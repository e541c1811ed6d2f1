"""Many wrong keys from one address are answered later and later; nobody else is held up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from credentials import KEYS, OPERATOR, UNKNOWN, VIEWER, log_in
from listener import ConnectionRefused, Listener
from web_process import SECRET, Answer, Web, token, web

FREE = 10  # different wrong keys in a minute


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Web]:
    with web(tmp_path, QM_API_KEYS=KEYS) as process:
        yield process


def wrong(number: int) -> str:
    return f"a-wrong-key-of-the-tests-{number:016}"


def ask(process: Web, key: str, **headers: str) -> Answer:
    return process.get("/schedule", X_API_KEY=key, **headers)


def test_many_wrong_keys_are_answered_later_and_later_with_429(guarded: Web) -> None:
    answers = [ask(guarded, wrong(number)) for number in range(FREE + 5)]
    assert [answer.status for answer in answers] == [401] * FREE + [429] * 5
    for number, answer in enumerate(answers[FREE:], start=1):
        assert answer.body["error"] == "too many wrong keys"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.took >= 0.1 * number
    assert guarded.log.count("Wrong keys from one address") == 1
    assert "a-wrong-key" not in guarded.log


def test_right_keys_and_other_addresses_are_not_held_up(guarded: Web) -> None:
    for number in range(FREE + 2):
        ask(guarded, wrong(number), X_Forwarded_For="203.0.113.9")
    assert ask(guarded, wrong(99), X_Forwarded_For="203.0.113.9").status == 429
    assert ask(guarded, VIEWER, X_Forwarded_For="203.0.113.9").status == 200
    assert log_in(guarded, OPERATOR, X_Forwarded_For="203.0.113.9").status == 303
    assert ask(guarded, wrong(99), X_Forwarded_For="203.0.113.10").status == 401
    assert ask(guarded, wrong(99)).status == 401


def test_all_of_an_ipv6_network_is_one_address(guarded: Web) -> None:
    for number in range(FREE):
        assert ask(guarded, wrong(number), X_Forwarded_For=f"2001:db8::{number:x}").status == 401
    assert ask(guarded, wrong(99), X_Forwarded_For="2001:db8::ffff").status == 429
    assert ask(guarded, wrong(99), X_Forwarded_For="2001:db8:0:1::1").status == 401


def test_one_wrong_key_again_and_again_is_no_guessing(guarded: Web) -> None:
    assert {ask(guarded, UNKNOWN).status for _ in range(5 * FREE)} == {401}


def test_a_program_that_never_ends_repeating_a_wrong_key_is_slowed_down_too(guarded: Web) -> None:
    connection = HTTPConnection("127.0.0.1", guarded.port, timeout=30)
    try:
        for _ in range(20 * 1_000):
            connection.request("GET", "/api/schedule", headers={"X-API-KEY": UNKNOWN})
            answer = connection.getresponse()
            answer.read()
            if answer.status == 429:
                break
            assert answer.status == 401
    finally:
        connection.close()
    assert answer.status == 429
    assert ask(guarded, VIEWER).status == 200


def test_the_log_in_and_socket_io_count_too(guarded: Web) -> None:
    for number in range(FREE - 2):
        assert log_in(guarded, wrong(number)).status == 401
    for number in range(FREE - 2, FREE):
        with pytest.raises(ConnectionRefused, match="unknown or has expired"):
            Listener(guarded.port, {"token": wrong(number)})
    with pytest.raises(ConnectionRefused, match="Too many wrong keys"):
        Listener(guarded.port, {"token": wrong(99)})
    page = log_in(guarded, wrong(100), Accept="text/html")
    assert (page.status, "Too many wrong keys" in page.text) == (429, True)
    assert int(page.headers["retry-after"]) >= 1
    with Listener(guarded.port, {"token": VIEWER}) as client:
        assert client.call("join", "a") == {"joined": ["a"]}


def test_tokens_of_accounts_are_not_counted_as_wrong_keys(tmp_path: Path) -> None:
    with web(tmp_path, QM_API_KEYS=KEYS, SOCKETIO_TOKEN_SECRET=SECRET) as process:
        for number in range(2 * FREE):
            with Listener(process.port, {"token": token(f"account-{number}")}) as client:
                assert client.call("join", f"account-{number}") == {"joined": [f"account-{number}"]}
        assert ask(process, wrong(0)).status == 401
        assert "Wrong keys" not in process.log


@pytest.mark.parametrize("given", ["o" * 40, "ab" * 20, "12345" * 8])
def test_a_key_of_few_different_characters_stops_the_start(given: str, tmp_path: Path) -> None:
    keys = json.dumps([{"name": "weak", "key": given, "role": "viewer"}])
    with web(tmp_path, QM_API_KEYS=keys) as process:
        assert process.child.wait(30) == 2
    assert "[0].key: random, with at least 6 different characters" in process.log
    assert process.log.count("\n") == 1
    assert given not in process.log
