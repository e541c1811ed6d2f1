"""Alerts: problems that last are sent once by all processes together, again while they last, and when they end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from models import alert
from models.alert import CLAIM_TIME, Key
from models.database import collection, server_now
from models.scan_run import Scan
from queue_manager.alerts import Alert, Notification, Watch, _round
from queue_manager.beat.status import Leadership
from queue_manager.core.clock import hours, minutes, seconds
from queue_manager.core.errors import Unavailable
from queue_manager.core.settings import settings
from queue_manager.health import readings
from queue_manager.health.problems import outcomes
from queue_manager.health.readings import Readings, read
from queue_manager.health_rules import Problem, Rule
from queue_manager.pauses import PauseState
from queue_manager.system import SystemStats
from queue_manager.telemetry.worker_heartbeats import OnlineWorker
from tests.real_servers import Servers

LAG = Problem(system="support-snooze", rule=Rule.LAG, text="The oldest due item has waited 40 s")
NO_LEADER = Problem(system="beat", rule=Rule.NO_LEADER, text="No leader")
UNKNOWN_STATE = Problem(system="support-snooze", rule=Rule.UNKNOWN_STATE, text="Its `stats` raised KeyError: 'x'")
SYSTEM = "support-snooze"
LAG_KEY = Key(SYSTEM, "lag")

Change = Callable[[Readings], Readings]


class Process:
    """A web process: its watch, with a hand-set clock, and what it has sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[str]]] = []
        self.takes = True
        self.is_killed = False
        self.watch = Watch(after=seconds(60), repeat=minutes(240), send=self._send)

    def _send(self, notification: Notification) -> bool:
        if self.is_killed:
            raise SystemExit
        self.sent.append((notification.status, [one.system for one in notification.alerts]))
        return self.takes

    def evaluate(self, at: float, *problems: Problem, unknown: str | None = None) -> Sequence[tuple[str, list[str]]]:
        """Take a round in which the outcomes of all rules are known, except those of a system; return what it sent."""
        judged = {"support-snooze", "beat"} - {unknown}
        none = {Key(system, rule.id): None for system in judged for rule in Rule}
        before = len(self.sent)
        self.watch.evaluate({**none, **{Key(one.system, one.rule.id): one for one in problems}}, at=at)
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

    for name in ("may_send", "confirm_sent", "sent", "silences", "may_send_end", "release", "release_ends", "delete"):
        monkeypatch.setattr(alert, name, fail)


def send_and_wait_for_repeat(monkeypatch: pytest.MonkeyPatch, *processes: Process) -> None:
    """Let the processes evaluate a lasting problem, which one of them sends; then it is time to send it again."""
    for process in processes:
        process.evaluate(0, LAG)
        process.evaluate(60, LAG)
    now = server_now()
    monkeypatch.setattr("queue_manager.alerts.server_now", lambda: now + minutes(241))


def test_a_problem_is_sent_after_it_has_lasted_long_enough(first: Process) -> None:
    assert first.evaluate(0, LAG) == []
    assert first.evaluate(45, LAG) == []
    assert first.evaluate(60, LAG) == [("problem", ["support-snooze"])]
    assert first.evaluate(75, LAG) == []


def test_a_problem_that_ends_early_is_not_sent(first: Process) -> None:
    first.evaluate(0, LAG)
    for at in (15, 30, 45):
        assert first.evaluate(at) == []
    assert first.evaluate(60, LAG) == []


def test_problems_of_one_round_are_sent_in_one_message(first: Process) -> None:
    first.evaluate(0, LAG, NO_LEADER)
    assert first.evaluate(60, LAG, NO_LEADER) == [("problem", ["beat", "support-snooze"])]


def test_one_of_two_processes_sends_an_alert(first: Process, second: Process) -> None:
    for process in (first, second):
        process.evaluate(0, LAG)
    assert first.evaluate(60, LAG) == [("problem", ["support-snooze"])]
    assert second.evaluate(61, LAG) == []
    for at in (75, 90):
        first.evaluate(at)
        second.evaluate(at)
    assert [*first.sent, *second.sent].count(("recovered", ["support-snooze"])) == 1


def test_a_lasting_problem_is_sent_again(first: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    send_and_wait_for_repeat(monkeypatch, first)
    assert first.evaluate(60 + 240 * 60 - 1, LAG) == []
    assert first.evaluate(60 + 240 * 60, LAG) == [("problem", ["support-snooze"])]


def test_a_repeat_that_no_channel_accepted_is_sent_in_the_next_round(
    first: Process, second: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_and_wait_for_repeat(monkeypatch, first, second)
    first.takes = second.takes = False
    assert first.evaluate(60 + 240 * 60, LAG) == [("problem", ["support-snooze"])]
    assert second.evaluate(61 + 240 * 60, LAG) == [("problem", ["support-snooze"])]
    first.takes = second.takes = True
    assert first.evaluate(75 + 240 * 60, LAG) == [("problem", ["support-snooze"])]
    for at in (90, 105):
        assert first.evaluate(at + 240 * 60, LAG) == []
        assert second.evaluate(at + 240 * 60, LAG) == []


def test_the_end_of_a_problem_whose_repeat_no_channel_accepted_is_sent(
    first: Process, second: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_and_wait_for_repeat(monkeypatch, first, second)
    first.takes = second.takes = False
    first.evaluate(60 + 240 * 60, LAG)
    first.evaluate(75 + 240 * 60)
    assert first.evaluate(90 + 240 * 60) == [("recovered", ["support-snooze"])]
    first.takes = True
    assert first.evaluate(105 + 240 * 60) == [("recovered", ["support-snooze"])]
    assert alert.sent() == {}


def test_the_end_of_a_problem_is_sent_after_it_was_absent_twice(first: Process) -> None:
    first.evaluate(0, LAG)
    first.evaluate(60, LAG)
    assert first.evaluate(75) == []
    assert first.evaluate(90, LAG) == []  # it flickers
    assert first.evaluate(105) == []
    assert first.evaluate(120) == [("recovered", ["support-snooze"])]
    assert first.evaluate(135) == []
    assert alert.sent() == {}


def test_the_end_of_a_problem_is_sent_by_a_process_that_did_not_see_its_start(first: Process, second: Process) -> None:
    first.evaluate(0, LAG)
    first.evaluate(60, LAG)
    assert second.evaluate(0) == []
    assert second.evaluate(15) == [("recovered", ["support-snooze"])]


@pytest.mark.parametrize("key", [Key("support-snooze", "rule-of-a-later-release"), Key("system-elsewhere", "lag")])
def test_a_problem_that_this_process_cannot_see_does_not_end(key: Key, first: Process) -> None:
    alert.may_send(key, "The oldest due item has waited 40 s", repeat=minutes(240), now=server_now())
    for at in (0, 15, 30):
        assert first.evaluate(at) == []
    assert list(alert.sent()) == [key]


def test_a_problem_does_not_end_in_a_process_in_which_its_system_is_off(
    first: Process, second: Process, change_settings: Callable[..., None]
) -> None:
    first.evaluate(0, LAG)
    first.evaluate(60, LAG)
    change_settings(QM_CONVERSATIONS="false")
    found = outcomes(asyncio.run(read()))
    for at in (60, 75, 90):
        second.watch.evaluate(found, at=at)
    assert second.sent == []
    assert list(alert.sent()) == [LAG_KEY]


def test_a_problem_does_not_end_while_its_outcome_is_unknown(first: Process) -> None:
    first.evaluate(0, LAG, NO_LEADER)
    first.evaluate(60, LAG, NO_LEADER)
    assert first.evaluate(75, UNKNOWN_STATE, unknown="support-snooze") == []
    assert first.evaluate(90, UNKNOWN_STATE, unknown="support-snooze") == [("recovered", ["beat"])]
    assert first.evaluate(135, UNKNOWN_STATE, unknown="support-snooze") == [("problem", ["support-snooze"])]
    assert first.evaluate(150) == []
    assert first.evaluate(165) == [("recovered", ["support-snooze", "support-snooze"])]


def change_in_redis(found: Readings, **values: Any) -> Readings:
    assert found.in_redis is not None
    return replace(found, redis=replace(found.in_redis, **values))


def with_worker(found: Readings, queues: tuple[str, ...] | None = None) -> Readings:
    worker = OnlineWorker(name="w@h", pid=1, seen_at=server_now(), queues=queues, release=None, paused=None)
    return change_in_redis(found, workers=[worker])


def with_worker_of_other_queues(found: Readings) -> Readings:
    return with_worker(found, ("jobs",))


def with_paused_worker(found: Readings) -> Readings:
    found = with_worker(found)
    assert found.in_redis is not None
    return change_in_redis(found, workers=[replace(found.in_redis.workers[0], paused="MongoDB does not answer")])


def without_worker(found: Readings) -> Readings:
    return change_in_redis(found, workers=[])


def with_run(found: Readings, *, errors: int = 0, ago: timedelta = seconds(1)) -> Readings:
    assert found.in_mongodb is not None
    counts = {"found": 0, "claimed": 0, "enqueued": 0, "errors": errors, "duration_ms": 1}
    run = Scan(
        id="1", at=found.in_mongodb.now - ago, is_paused=False, error="boom" if errors else None, noted={}, **counts
    )
    return replace(found, mongodb=replace(found.in_mongodb, last_runs={**found.in_mongodb.last_runs, SYSTEM: run}))


def with_scan_errors(found: Readings) -> Readings:
    return with_run(found, errors=2)


def with_late_scan(found: Readings) -> Readings:
    return with_run(found, errors=2, ago=hours(1))


def with_dead_letter(found: Readings) -> Readings:
    return change_in_redis(found, dead_letters=1)


def with_another_clock(found: Readings) -> Readings:
    return change_in_redis(found, clock_ahead=seconds(60))


def with_lag(found: Readings) -> Readings:
    return replace(found, stats={**found.stats, "support-snooze": SystemStats(numbers={"lag_seconds": 4_000})})


def with_unknown_lag(found: Readings) -> Readings:
    return replace(found, stats={**found.stats, "support-snooze": SystemStats(numbers={})})


def with_new_leader(found: Readings) -> Readings:
    assert found.in_redis is not None
    leader = Leadership(host="h", pid=1, since=found.in_redis.now, epoch=1, lease_left=seconds(30))
    return change_in_redis(without_worker(found), leader=leader)


def with_pause(found: Readings) -> Readings:
    return change_in_redis(with_lag(found), pauses={SYSTEM: PauseState()})


def without_broker(found: Readings) -> Readings:
    return change_in_redis(without("broker")(found), dead_letters=None)


def without_stats(found: Readings) -> Readings:
    return replace(found, stats={**found.stats, "support-snooze": UNKNOWN_STATE})


def without(server: str) -> Change:
    away: Any = {server: Problem(system=server, rule=Rule.SERVER_AWAY, text="does not answer")}
    return lambda found: replace(found, **away)


@pytest.mark.parametrize(
    ("started", "unread", "key"),
    [
        (with_dead_letter, without_broker, "broker (dead-letters)"),
        (with_dead_letter, without("redis"), "broker (dead-letters)"),
        (with_another_clock, without("redis"), "clocks (clocks-apart)"),
        (with_scan_errors, without("mongodb"), "support-snooze (scan-errors)"),
        (with_scan_errors, with_late_scan, "support-snooze (scan-errors)"),
        (without_worker, with_new_leader, "workers (no-workers)"),
        (with_worker_of_other_queues, without_worker, "workers (queue-without-worker)"),
        (with_worker_of_other_queues, without_worker, "support-snooze (queue-without-worker)"),
        (with_paused_worker, without_worker, "workers (paused-workers)"),
        (with_lag, without_stats, "support-snooze (lag)"),
        (with_lag, with_pause, "support-snooze (lag)"),
        (with_lag, with_unknown_lag, "support-snooze (lag)"),
    ],
)
def test_a_round_does_not_end_problems_whose_outcome_is_unknown(
    started: Change, unread: Change, key: str, clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def send(one: Notification) -> bool:
        sent.append(one.title)
        return True

    watch = Watch(after=seconds(0), repeat=minutes(240), send=send)
    healthy = with_run(with_worker(asyncio.run(read())))

    def rounds(number: int, found: Readings) -> str:
        """Take rounds that read this; return the titles of what they sent."""

        async def given() -> Readings:
            return found

        monkeypatch.setattr("queue_manager.alerts.read", given)
        sent.clear()
        for _ in range(number):
            asyncio.run(_round(watch))
        return "\n".join(sent)

    def ended(titles: str) -> bool:
        return any("Recovered" in title and key in title for title in titles.splitlines())

    assert key in rounds(1, started(healthy))
    assert not ended(rounds(3, unread(healthy)))
    assert key not in rounds(1, started(healthy))
    assert ended(rounds(2, healthy))


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("server", ["redis", "broker", "mongodb"])
def test_a_server_that_answers_with_another_problem_is_not_away(server: str) -> None:
    found = asyncio.run(read())
    unsuitable: Any = {server: Problem(system=server, rule=Rule.SERVER_UNSUITABLE, text="is no replica set")}
    key = Key(server, Rule.SERVER_AWAY.id)
    assert outcomes(replace(found, **unsuitable)).get(key, "unknown") is None
    assert outcomes(without(server)(found))[key] is not None


@pytest.mark.usefixtures("clean")
def test_a_write_that_failed_in_an_outage_of_mongodb_is_tried_again_when_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise Unavailable("MongoDB does not answer")

    failed = Problem(system="mongodb", rule=Rule.REFUSED_WRITES, text="MongoDB did not confirm a write")
    monkeypatch.setitem(readings._checked_writes, settings().mongo_db_url, (math.inf, failed))
    with monkeypatch.context() as outage:
        outage.setattr(readings, "_mongodb", fail)
        assert isinstance(asyncio.run(read()).mongodb, Problem)
    assert asyncio.run(read()).mongodb_writes is None


def test_alerts_that_no_channel_accepted_are_sent_in_the_next_round(first: Process) -> None:
    first.evaluate(0, LAG)
    first.takes = False
    assert first.evaluate(60, LAG) == [("problem", ["support-snooze"])]
    assert alert.sent() == {}
    first.takes = True
    assert first.evaluate(75, LAG) == [("problem", ["support-snooze"])]
    assert first.evaluate(90, LAG) == []


def test_an_end_that_no_channel_accepted_is_sent_in_the_next_round(first: Process) -> None:
    first.evaluate(0, LAG)
    first.evaluate(60, LAG)
    first.evaluate(75)
    first.takes = False
    for at in (90, 105):
        assert first.evaluate(at) == [("recovered", ["support-snooze"])]
    first.takes = True
    assert first.evaluate(120) == [("recovered", ["support-snooze"])]
    assert first.evaluate(135) == []
    assert alert.sent() == {}


def test_an_end_that_no_channel_accepted_is_sent_by_another_process(first: Process, second: Process) -> None:
    first.evaluate(0, LAG)
    first.evaluate(60, LAG)
    first.evaluate(75)
    first.takes = False
    first.evaluate(90)
    second.evaluate(91)
    assert second.evaluate(106) == [("recovered", ["support-snooze"])]
    assert first.evaluate(107) == []


def test_a_problem_that_is_back_before_its_end_was_sent_continues(first: Process) -> None:
    first.evaluate(0, LAG)
    first.evaluate(60, LAG)
    first.evaluate(75)
    first.takes = False
    first.evaluate(90)
    first.takes = True
    for at in (105, 165):
        assert first.evaluate(at, LAG) == []
    first.evaluate(180)
    assert first.evaluate(195) == [("recovered", ["support-snooze"])]


@pytest.mark.usefixtures("without_mongodb")
def test_without_mongodb_an_end_that_no_channel_accepted_is_sent_in_the_next_round(first: Process) -> None:
    first.evaluate(0, NO_LEADER)
    first.evaluate(60, NO_LEADER)
    first.evaluate(75)
    first.takes = False
    assert first.evaluate(90) == [("recovered", ["beat"])]
    first.takes = True
    assert first.evaluate(105) == [("recovered", ["beat"])]
    assert first.evaluate(120) == []


def test_alerts_of_a_killed_process_are_sent_by_another_a_minute_later(
    first: Process, second: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = Process()
    for process in (first, second, third):
        process.evaluate(0, LAG)
    first.is_killed = True
    with pytest.raises(SystemExit):
        first.evaluate(60, LAG)
    assert second.evaluate(61, LAG) == []
    now = server_now() + CLAIM_TIME
    monkeypatch.setattr("queue_manager.alerts.server_now", lambda: now)
    assert second.evaluate(121, LAG) == [("problem", ["support-snooze"])]
    monkeypatch.setattr("queue_manager.alerts.server_now", lambda: now + CLAIM_TIME)
    for process in (second, third):
        assert process.evaluate(181, LAG) == []


def test_the_end_of_a_killed_process_is_sent_by_another_a_minute_later(
    first: Process, second: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    for process in (first, second):
        process.evaluate(0, LAG)
        process.evaluate(60, LAG)
        process.evaluate(75)
    first.is_killed = True
    with pytest.raises(SystemExit):
        first.evaluate(90)
    for at in (91, 106, 121):
        assert second.evaluate(at) == []
    now = server_now() + CLAIM_TIME
    monkeypatch.setattr("queue_manager.alerts.server_now", lambda: now)
    assert [second.evaluate(at) for at in (151, 166)].count([("recovered", ["support-snooze"])]) == 1
    assert alert.sent() == {}


def test_the_end_of_a_silenced_problem_is_forgotten(first: Process) -> None:
    first.evaluate(0, LAG)
    first.evaluate(60, LAG)
    alert.silence(LAG_KEY, until=server_now() + minutes(60), by="ada", reason="import")
    first.evaluate(75)
    assert first.evaluate(90) == []
    assert alert.sent() == {}


def test_an_alert_is_not_repeated_because_a_third_process_does_not_see_the_problem(
    first: Process, second: Process
) -> None:
    third = Process()
    for process in (first, second):
        process.evaluate(0, LAG)
        process.evaluate(60, LAG)
    third.evaluate(75)
    assert third.evaluate(90) == [("recovered", ["support-snooze"])]
    for process in (first, second):
        assert process.evaluate(105, LAG) == []


def test_an_alert_is_not_repeated_by_another_process_while_mongodb_is_unavailable(
    first: Process, second: Process, request: pytest.FixtureRequest
) -> None:
    for process in (first, second):
        process.evaluate(0, LAG)
        process.evaluate(60, LAG)
    request.getfixturevalue("without_mongodb")
    for process in (first, second):
        assert process.evaluate(75, LAG) == []
    assert [*first.sent, *second.sent] == [("problem", ["support-snooze"])]


def test_neither_a_silenced_problem_nor_its_end_is_sent(first: Process) -> None:
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
        process.evaluate(0, NO_LEADER)
        assert process.evaluate(60, NO_LEADER) == [("problem", ["beat"])]
        assert process.evaluate(75, NO_LEADER) == []
        process.evaluate(90)
        assert process.evaluate(105) == [("recovered", ["beat"])]


def test_the_end_of_a_problem_that_was_sent_without_mongodb_is_sent_when_it_answers(
    first: Process, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.getfixturevalue("without_mongodb")
    first.evaluate(0, NO_LEADER)
    assert first.evaluate(60, NO_LEADER) == [("problem", ["beat"])]
    monkeypatch.undo()
    first.evaluate(75)
    assert first.evaluate(90) == [("recovered", ["beat"])]


def test_times_in_the_future_keep_neither_a_problem_nor_its_end_from_being_sent(
    first: Process, second: Process
) -> None:
    for process in (first, second):
        process.evaluate(0, LAG)
    first.evaluate(60, LAG)
    later = server_now() + minutes(10)
    collection(alert.ALERTS_COLLECTION).update_one({}, {"$set": {"sent_at": later, "ended_at": later}})
    assert second.evaluate(60, LAG) == [("problem", ["support-snooze"])]
    second.evaluate(75)
    assert second.evaluate(90) == [("recovered", ["support-snooze"])]


@pytest.mark.usefixtures("clean")
def test_what_is_recorded_of_one_problem_leaves_the_others() -> None:
    one, other, now = LAG_KEY, Key("beat", "no-leader"), server_now()

    def may_send(key: Key) -> bool:
        return alert.may_send(key, "text", repeat=hours(4), now=now)

    assert may_send(one)
    assert may_send(other)
    alert.confirm_sent([one], now)
    alert.release([one])
    assert may_send(one)
    assert not may_send(other)  # it is still claimed
    alert.release([other])
    assert set(alert.sent()) == {one}  # the other was never sent
    assert may_send(other)
    alert.confirm_sent([one, other], now)
    assert alert.may_send_end(one, now)
    assert not alert.may_send_end(one, now)
    assert alert.may_send_end(other, now)
    alert.release_ends([one])
    assert not alert.may_send_end(other, now)
    alert.delete([one])
    assert set(alert.sent()) == {other}

    for key in (one, other):
        alert.silence(key, until=now + minutes(5), by="ada", reason="import")
    assert alert.unsilence(one)
    assert not alert.unsilence(one)
    assert [silence.key for silence in alert.silences(now)] == [other]


def test_an_alert_has_a_title_and_escapes_foreign_markup() -> None:
    notification = Notification("problem", [Alert.of(LAG), Alert("jobs", "failing-jobs", "<!channel> & more", "Look.")])
    assert notification.title == "[test] 2 problems: support-snooze (lag), jobs (failing-jobs)"
    assert notification.as_slack()["text"].splitlines()[2] == "• jobs (warning): &lt;!channel&gt; &amp; more. Look."
    assert notification.as_json()["problems"][0] == {
        "system": "support-snooze",
        "rule": "lag",
        "severity": "warning",
        "text": LAG.text,
        "action": Rule.LAG.action,
    }
    recovered = Notification("recovered", [Alert("beat", "no-leader", "No leader")])
    assert recovered.title == "[test] Recovered: beat (no-leader)"
    assert recovered.as_mail("from@x", ["to@x"]).get_content() == "beat (critical): No leader\n"


def test_an_alert_without_a_known_rule_has_no_severity() -> None:
    for_test = Alert("settings", "test", "This is a test", "Nothing.")
    assert (for_test.severity, for_test.line) == (None, "settings: This is a test. Nothing.")
