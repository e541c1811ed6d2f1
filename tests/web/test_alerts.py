"""Alerts: problems that last are sent once by all processes together, again while they last, and when they end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pymongo.errors import AutoReconnect

from models import alert
from models.alert import Key
from models.database import server_now
from queue_manager.alerts.notification import Alert, Notification
from queue_manager.alerts.watch import Watch
from queue_manager.core.clock import minutes, seconds
from queue_manager.health_rules import Problem, Rule
from tests.real_servers import Servers

LAG = Problem(system="support-snooze", rule=Rule.LAG, text="The oldest due item has waited 40 s")
NO_LEADER = Problem(system="beat", rule=Rule.NO_LEADER, text="No leader")
LAG_KEY = Key("support-snooze", "lag")


class Process:
    """A web process: its watch, with a hand-set clock, and what it has sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[str]]] = []
        self.takes = True
        self.watch = Watch(after=seconds(60), repeat=minutes(240), send=self._send)

    def _send(self, notification: Notification) -> bool:
        self.sent.append((notification.status, [one.system for one in notification.alerts]))
        return self.takes

    def evaluate(self, at: float, *problems: Problem, is_complete: bool = True) -> Sequence[tuple[str, list[str]]]:
        """Take a round; return what it sent."""
        before = len(self.sent)
        self.watch.evaluate(problems, at=at, is_complete=is_complete)
        return self.sent[before:]


@pytest.fixture
def first(clean: Servers) -> Process:
    return Process()


@pytest.fixture
def second(clean: Servers) -> Process:
    return Process()


@pytest.fixture
def without_mongodb(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AutoReconnect("connection closed")

    for name in ("may_send", "sent", "silences", "end"):
        monkeypatch.setattr(alert, name, fail)


def test_a_problem_is_sent_when_it_has_lasted(first: Process) -> None:
    assert first.evaluate(0, LAG) == []
    assert first.evaluate(45, LAG) == []
    assert first.evaluate(60, LAG) == [("problem", ["support-snooze"])]
    assert first.evaluate(75, LAG) == []


def test_a_problem_that_ended_in_time_is_never_sent(first: Process) -> None:
    first.evaluate(0, LAG)
    for at in (15, 30, 45):
        assert first.evaluate(at) == []
    assert first.evaluate(60, LAG) == []


def test_problems_of_one_round_are_one_message(first: Process) -> None:
    first.evaluate(0, LAG, NO_LEADER)
    assert first.evaluate(60, LAG, NO_LEADER) == [("problem", ["support-snooze", "beat"])]


def test_of_two_processes_one_sends(first: Process, second: Process) -> None:
    for process in (first, second):
        process.evaluate(0, LAG)
    assert first.evaluate(60, LAG) == [("problem", ["support-snooze"])]
    assert second.evaluate(61, LAG) == []
    for at in (75, 90):
        first.evaluate(at)
        second.evaluate(at)
    assert [*first.sent, *second.sent].count(("recovered", ["support-snooze"])) == 1


def test_what_lasts_is_sent_again(first: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    first.evaluate(0, LAG)
    first.evaluate(60, LAG)
    now = server_now()
    monkeypatch.setattr("queue_manager.alerts.watch.server_now", lambda: now + minutes(241))
    assert first.evaluate(60 + 240 * 60 - 1, LAG) == []
    assert first.evaluate(60 + 240 * 60, LAG) == [("problem", ["support-snooze"])]


def test_the_end_is_sent_once_it_was_missed_twice(first: Process) -> None:
    first.evaluate(0, LAG)
    first.evaluate(60, LAG)
    assert first.evaluate(75) == []
    assert first.evaluate(90, LAG) == []  # it flickers
    assert first.evaluate(105) == []
    assert first.evaluate(120) == [("recovered", ["support-snooze"])]
    assert first.evaluate(135) == []
    assert alert.sent() == {}


def test_the_end_is_sent_by_a_process_that_did_not_see_the_start(first: Process, second: Process) -> None:
    first.evaluate(0, LAG)
    first.evaluate(60, LAG)
    assert second.evaluate(0) == []
    assert second.evaluate(15) == [("recovered", ["support-snooze"])]


def test_while_a_server_is_away_nothing_has_ended(first: Process) -> None:
    first.evaluate(0, LAG)
    first.evaluate(60, LAG)
    for at in (75, 90, 105):
        assert first.evaluate(at, is_complete=False) == []
    assert first.evaluate(120, LAG) == []


def test_what_no_channel_took_is_sent_in_the_next_round(first: Process) -> None:
    first.evaluate(0, LAG)
    first.takes = False
    assert first.evaluate(60, LAG) == [("problem", ["support-snooze"])]
    assert alert.sent() == {}
    first.takes = True
    assert first.evaluate(75, LAG) == [("problem", ["support-snooze"])]
    assert first.evaluate(90, LAG) == []


def test_a_silenced_problem_is_not_sent_and_its_end_neither(first: Process) -> None:
    alert.silence(LAG_KEY, until=server_now() + minutes(5), by="ada", reason="import")
    first.evaluate(0, LAG, NO_LEADER)
    assert first.evaluate(60, LAG, NO_LEADER) == [("problem", ["beat"])]
    assert alert.unsilence(LAG_KEY)
    assert first.evaluate(75, LAG, NO_LEADER) == [("problem", ["support-snooze"])]
    alert.silence(LAG_KEY, until=server_now() + minutes(5), by="ada", reason="import")
    first.evaluate(90, NO_LEADER)
    assert first.evaluate(105, NO_LEADER) == []
    assert alert.sent() == {Key("beat", "no-leader"): "No leader"}


def test_a_silence_ends_by_itself(first: Process) -> None:
    alert.silence(LAG_KEY, until=server_now() - seconds(1), by="ada", reason="import")
    first.evaluate(0, LAG)
    assert first.evaluate(60, LAG) == [("problem", ["support-snooze"])]


@pytest.mark.usefixtures("without_mongodb")
def test_without_mongodb_each_process_sends_once(first: Process, second: Process) -> None:
    for process in (first, second):
        process.evaluate(0, NO_LEADER, is_complete=False)
        assert process.evaluate(60, NO_LEADER, is_complete=False) == [("problem", ["beat"])]
        assert process.evaluate(75, NO_LEADER, is_complete=False) == []
        process.evaluate(90)
        assert process.evaluate(105) == [("recovered", ["beat"])]


def test_a_message_has_a_title_and_no_markup_of_others() -> None:
    notification = Notification("problem", [Alert.of(LAG), Alert("jobs", "failing-jobs", "<!channel> & more", "Look.")])
    assert notification.title == "[test] 2 problems: support-snooze (lag), jobs (failing-jobs)"
    assert notification.as_slack()["text"].splitlines()[2] == "• jobs: &lt;!channel&gt; &amp; more. Look."
    assert notification.as_json()["problems"][0] == {
        "system": "support-snooze",
        "rule": "lag",
        "text": LAG.text,
        "action": Rule.LAG.action,
    }
    recovered = Notification("recovered", [Alert("beat", "no-leader", "No leader")])
    assert recovered.title == "[test] Recovered: beat (no-leader)"
    assert recovered.as_mail("from@x", ["to@x"]).get_content() == "beat: No leader\n"
