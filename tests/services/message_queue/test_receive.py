"""A message in a `with`: acknowledged at its end, requeued by an error, its deadline extended while it is processed."""

from __future__ import annotations

import logging
from typing import NoReturn

import pytest

from services.message_queue import LockLost, QueueUnavailable
from tests.eventually import eventually
from tests.services.message_queue.message_lab import Lab


def test_message_is_acknowledged_at_the_end_of_the_block(lab: Lab) -> None:
    lab.queue.enqueue("job", {"n": 1}, id="a")

    with lab.queue.receive() as message:
        assert message is not None
        assert message.payload == {"n": 1}
        assert lab.ids("processing") == ["a"]

    assert lab.ids("acknowledged") == ["a"]


def test_receive_yields_none_if_the_queue_is_empty(lab: Lab) -> None:
    before = lab.dump()
    with lab.queue.receive() as message:
        assert message is None
    with pytest.raises(ZeroDivisionError), lab.queue.receive():
        raise ZeroDivisionError
    assert {key: value for key, value in lab.dump().items() if key.decode() not in lab.streams} == before


def test_message_is_rejected_with_the_text_of_the_error(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a", max_attempts=2)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such address"):
            with lab.queue.receive():
                raise ValueError("no such address \ud800")

    [dead] = lab.contents.list("dead").messages
    assert dead.fields["last_error"] == "ValueError: no such address ?"
    assert dead.attempt == 2


@pytest.mark.parametrize("own_timeout", [None, 0.6])
def test_heartbeat_extends_the_deadline_while_the_block_runs(lab: Lab, own_timeout: float | None) -> None:
    lab.queue.enqueue("job", id="a", ack_timeout=None if own_timeout else 0.6)
    with lab.queue.receive(ack_timeout=own_timeout) as message:
        assert message is not None
        first = message.deadline_at or 0
        # No sweep meanwhile: after a pause of the machine that is longer than 0.6 s, it would be right to requeue it.
        eventually(lambda: (found := lab.contents.find("a")) and (found.deadline_at or 0) > first + 0.7)

    assert lab.ids("acknowledged") == ["a"]
    assert any(b'"type":"touch"' in event for event in lab.events())


def test_lost_lock_is_logged_and_raised_at_the_end_of_the_block(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.queue.enqueue("job", id="a", ack_timeout=0.15)

    def work() -> None:
        with lab.queue.receive():
            lab.contents.move(["a"], to="archived")
            eventually(lambda: "lock was lost" in caplog.text)

    with caplog.at_level(logging.WARNING), pytest.raises(LockLost):
        work()

    assert lab.ids("archived") == ["a"]


def test_error_of_the_block_is_not_hidden_by_a_lost_lock(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.queue.enqueue("job", id="a")

    def work() -> None:
        with lab.queue.receive():
            lab.contents.delete(["a"])
            raise ZeroDivisionError

    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
        work()

    assert "could not be nacked" in caplog.text


def unavailable(*_: object) -> NoReturn:
    raise QueueUnavailable("away")


def test_error_of_the_block_is_not_hidden_by_an_unavailable_server(
    lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.queue.enqueue("job", id="a")

    def work() -> None:
        with lab.queue.receive():
            monkeypatch.setattr(lab.scripts, "run", unavailable)
            raise ZeroDivisionError

    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
        work()

    assert "could not be nacked" in caplog.text


def test_heartbeat_goes_on_after_the_server_was_unavailable(
    lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.queue.enqueue("job", id="a", ack_timeout=0.03)
    with lab.queue.receive():
        with monkeypatch.context() as patch:
            patch.setattr(lab.scripts, "run", unavailable)
            eventually(lambda: "A touch failed and will be retried" in caplog.text, within=20)
        eventually(lambda: any(b'"type":"touch"' in event for event in lab.events()))

    assert lab.ids("acknowledged") == ["a"]


def test_no_heartbeat_is_sent_after_the_end_of_the_block(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a", ack_timeout=0.03)
    with lab.queue.receive():
        eventually(lambda: any(b'"type":"touch"' in event for event in lab.events()))
    before = lab.dump()
    lab.until_passed(lab.now_ms() + 50)  # more than a beat
    assert lab.dump() == before
