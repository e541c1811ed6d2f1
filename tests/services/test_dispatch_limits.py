"""Limits of dispatch: a rate, a pause, a dry run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

import beat_schedule
from models import schema
from models.database import collection
from queue_manager import DueDocuments, pauses
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.errors import ConfigurationError, Unavailable
from queue_manager.items import DueItem
from queue_manager.leases import Leases
from services.due_documents import work_of
from services.due_documents.work import DocumentWork
from services.due_work import DueBatch, Limits
from tests.real_servers import Servers
from tests.rooms import T0, HandClock

PERIOD = seconds(2)

calls = DueDocuments(
    name="calls",
    title="Calls",
    description="Calls of a service that accepts ten a second.",
    collection="calls",
    due="due_at",
    every=PERIOD,
    max_rate=10,
    done="unset",
)


@calls.item()
def call(document: dict[str, Any]) -> dict[str, Any]:
    return {}


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def work(clean: Servers, clock: HandClock) -> DocumentWork:
    schema.migrate([calls])
    return replace(work_of(calls), clock=clock)


@pytest.fixture
def dry_run(change_settings: Callable[..., None]) -> None:
    change_settings(QM_DRY_RUN="calls")


def add(count: int, due_at: datetime = T0 - minutes(1)) -> None:
    collection("calls").insert_many([{"due_at": due_at} for _ in range(count)])


def scan(work: DocumentWork) -> list[DueBatch]:
    batches = []
    for batch in work.take_due(Backlog):
        work.mark_dispatched(batch)
        batches.append(batch)
    return batches


def items_of(batches: list[DueBatch]) -> list[DueItem]:
    return [item for batch in batches for item in batch.items]


def times(items: list[DueItem], now: datetime) -> list[float]:
    """Return when the items come, in seconds after T0; without a time of their own at once."""
    return [((item.eta or now) - T0).total_seconds() for item in items]


def seconds_apart(at: list[float]) -> list[float]:
    return [round(later - earlier, 3) for earlier, later in pairwise(at)]


class TestRate:
    def test_fifty_items_at_ten_a_second_need_five_seconds_and_none_is_lost(
        self, work: DocumentWork, clock: HandClock
    ) -> None:
        add(50)
        sent: list[DueItem] = []
        came: list[float] = []
        for _ in range(4):
            found = items_of(scan(work))
            assert len(found) <= 20
            sent, came = sent + found, came + times(found, clock.now)
            clock.advance(PERIOD)
        assert len({item.args for item in sent}) == len(sent) == 50
        assert seconds_apart(came) == [0.1] * 49

    def test_a_second_scan_in_the_same_period_dispatches_nothing(self, work: DocumentWork, clock: HandClock) -> None:
        add(50)
        assert len(items_of(scan(work))) == 20
        assert items_of(scan(work)) == []

    def test_a_scan_that_could_not_send_does_not_use_up_the_rate(self, work: DocumentWork, clock: HandClock) -> None:
        add(50)
        for batch in work.take_due(Backlog):
            work.release(batch.items)
            break
        assert items_of(scan(work)) == []
        clock.advance(PERIOD)
        assert times(items_of(scan(work)), clock.now)[0] == 2.0

    def test_items_dispatched_ahead_keep_their_time_and_the_rate(self, work: DocumentWork, clock: HandClock) -> None:
        add(2)
        add(3, T0 + seconds(1))
        assert times(items_of(scan(work)), clock.now) == [0, 0.1, 1, 1.1, 1.2]

    def test_the_lease_of_each_item_shows_its_own_time(self, work: DocumentWork, clock: HandClock) -> None:
        add(5)
        ahead = [item for item in items_of(scan(work)) if item.eta is not None]
        shown = [work.leases.detail(item.lease).at for item in ahead]
        assert seconds_apart([at.timestamp() for at in shown if at is not None]) == [0.1] * 3

    def test_a_rate_below_one_item_per_period_still_dispatches(self, work: DocumentWork, clock: HandClock) -> None:
        add(3)
        slow = replace(work, max_rate=0.25)
        came: list[float] = []
        for _ in range(7):
            came += times(items_of(scan(slow)), clock.now)
            clock.advance(PERIOD)
        assert came == [0, 4, 8]

    def test_manual_retries_ignore_the_rate(self, work: DocumentWork, clock: HandClock) -> None:
        add(30)
        due = list(work.find_due(clock.now))
        assert [item.eta for item in work.take_manually(due)] == [None] * 30


class TestPause:
    def test_a_paused_system_dispatches_nothing_until_it_is_resumed(self, work: DocumentWork) -> None:
        add(1)
        pauses.pause("calls", by="a test")
        assert scan(work) == [DueBatch(found=0, items=[], other_counts={"paused": 1})]
        assert pauses.paused().keys() == {"calls"}
        pauses.resume("calls")
        assert len(items_of(scan(work))) == 1

    def test_a_scan_that_runs_stops_after_the_batch_in_which_its_system_is_paused(self, work: DocumentWork) -> None:
        add(5)
        add(5, T0 + seconds(1))
        endless = replace(work, max_rate=None, limits=Limits(batch=2, max_queue=100, ahead=5))
        batches = endless.take_due(Backlog)
        assert [len(next(batches).items), len(next(batches).items)] == [2, 2]
        pauses.pause("calls", by="a test")
        assert list(batches) == []
        pauses.resume("calls")
        assert sum(len(batch.items) for batch in endless.take_due(Backlog)) == 6

    def test_pausing_a_system_does_not_pause_another(self, work: DocumentWork) -> None:
        add(1)
        pauses.pause("support-snooze", by="a test")
        assert len(items_of(scan(work))) == 1

    def test_pausing_also_holds_back_outstanding_calls_of_after(self, work: DocumentWork) -> None:
        pauses.pause("calls", by="a test")
        assert [batch.other_counts for batch in work.after_calls.take_due(Backlog)] == [{"paused": 1}]


class TestDryRun:
    @pytest.mark.usefixtures("dry_run")
    def test_dry_run_counts_due_items_and_dispatches_none(self, work: DocumentWork) -> None:
        add(3)
        add(1, T0 + seconds(1))
        for _ in range(2):
            assert scan(work) == [DueBatch(found=3, items=[], other_counts={"dry_run": 3})]

    @pytest.mark.usefixtures("dry_run")
    def test_dry_run_ends_when_the_scan_would(self, work: DocumentWork) -> None:
        add(3)
        one_by_one = replace(work, limits=Limits(batch=1, max_queue=10, ahead=0))
        assert [batch.found for batch in one_by_one.take_due(lambda: Backlog(time_left=seconds(0)))] == [1]

    @pytest.mark.usefixtures("dry_run")
    def test_an_unknown_name_in_qm_dry_run_is_refused_at_start(self) -> None:
        with pytest.raises(
            ConfigurationError, match=r"^QM_DRY_RUN: there is no system 'calls'; the systems are: support-snooze, "
        ):
            beat_schedule.systems()

    def test_a_system_that_dispatches_nothing_has_no_dry_run(self) -> None:
        with pytest.raises(ConfigurationError, match=r"^There is no system 'overdue-messages'; the systems are: "):
            beat_schedule.find_dispatching("overdue-messages", beat_schedule.SYSTEMS)


def test_an_item_found_twice_is_dispatched_once(work: DocumentWork) -> None:
    add(1)
    [found] = work.find_due(work.clock())
    assert [len(work._take([found, found, found]).items), work._take([found]).items] == [1, []]


def test_items_are_due_again_at_once_if_a_scan_fails_before_it_sends_them(
    work: DocumentWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise Unavailable("Redis does not answer")

    add(3)
    with monkeypatch.context() as patched:
        patched.setattr(Leases, "reserve", fail)
        with pytest.raises(Unavailable):
            scan(work)
    assert len(items_of(scan(work))) == 3


@pytest.mark.parametrize("rate", [0, -1, float("inf")])
def test_a_rate_must_be_above_zero(rate: float) -> None:
    with pytest.raises(ConfigurationError, match=r"max_rate=.* must be a number of items per second, above zero"):
        replace(calls, max_rate=rate)
