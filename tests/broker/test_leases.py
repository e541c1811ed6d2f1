"""The lease of dispatched items on a real server: who may take an item, and what happens after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import redis

from queue_manager import leases
from queue_manager.core import redis_client
from queue_manager.core.clock import from_unix_ms, hours, local_now, minutes, seconds, unix_ms
from queue_manager.core.errors import Unavailable
from queue_manager.core.redis_client import BestEffortClient, make_client
from queue_manager.leases import OFTEN_LOST, Leases, MustCoolDown
from queue_manager.leases.scripts import JUST_TAKEN_MS, MAX_ARGUMENTS, RELEASE_SCAN_LOCK, RETENTION_MS
from queue_manager.server_calls import redis_server
from tests.eventually import eventually
from tests.real_servers import Servers

AT = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
ONE, TWO, THREE = (leases.name(id, AT) for id in ("room-1", "room-2", "room-3"))


@pytest.fixture
def client(clean: Servers) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(clean.valkey.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def ours(clean: Servers) -> Leases:
    return Leases("trial-end", minutes(1))


@pytest.fixture
def short(clean: Servers) -> Leases:
    """The same leases, taken for a moment only."""
    return Leases("trial-end", seconds(0.05))


def take(ours: Leases, *names: str, is_forced: bool = False) -> list[str]:
    return [names[position] for position in ours.take(names, is_forced=is_forced).positions]


def dispatch(ours: Leases, *names: str) -> None:
    taken = ours.take(names)
    assert len(taken.positions) == len(names)
    ours.mark_dispatched(names, ends_ms=taken.ends_ms)


def age_waiting(client: redis.Redis, *names: str) -> None:
    """Let messages have waited for so long that those without one in the broker count as lost."""
    for name in names:
        client.zincrby("qm:lease:trial-end:waiting", -2 * JUST_TAKEN_MS, name)


def states(ours: Leases, *names: str) -> list[str]:
    return [status.state for status in ours.statuses(names)]


def steps(ours: Leases, *names: str) -> list[str]:
    return [ours.detail(name).step for name in names]


class TestTake:
    def test_one_of_two_scanners_takes_an_item(self, ours: Leases) -> None:
        assert take(ours, ONE, TWO) == [ONE, TWO]
        assert take(ours, TWO, THREE) == [THREE]

    def test_a_new_due_time_is_a_new_lease_that_an_old_message_cannot_release(self, ours: Leases) -> None:
        later = leases.name("room-1", AT + minutes(1))
        assert take(ours, ONE) == [ONE]
        assert take(ours, later) == [later]
        ours.release([ONE])
        assert states(ours, ONE, later) == ["free", "in-progress"]

    def test_lease_expires_if_the_scan_dies_before_sending(self, short: Leases, ours: Leases) -> None:
        assert take(short, ONE) == [ONE]
        eventually(lambda: take(ours, ONE) == [ONE])

    def test_items_that_a_dead_scan_did_not_send_are_free_after_15_s(self, client: redis.Redis) -> None:
        before, _ = client.time()
        ends_ms = Leases("trial-end", hours(1)).take([ONE]).ends_ms
        after, _ = client.time()
        assert 15 <= ends_ms / 1000 - before <= 16 + after - before

    def test_more_leases_than_one_command_accepts_are_taken(self, ours: Leases) -> None:
        names = [leases.name(str(number), AT) for number in range(2 * MAX_ARGUMENTS + 1)]
        assert take(ours, *names) == names
        assert take(ours, *names) == []
        assert states(ours, *names) == ["in-progress"] * len(names)

    @pytest.mark.parametrize("id", ["päth", "half a pair: \ud800"])
    def test_an_id_may_be_any_text(self, id: str, ours: Leases) -> None:
        name = leases.name(id, AT)
        assert take(ours, name) == [name]
        assert take(ours, name) == []

    def test_systems_do_not_share_leases(self, ours: Leases) -> None:
        assert take(ours, ONE) == [ONE]
        assert take(Leases("another"), ONE) == [ONE]


class TestWaiting:
    def test_leases_of_many_waiting_messages_do_not_expire(self, ours: Leases) -> None:
        names = [leases.name(str(number), AT) for number in range(3 * MAX_ARGUMENTS)]
        dispatch(ours, *names)
        assert {status.ends_at for status in ours.statuses(names)} == {None}

    def test_each_of_many_messages_sent_ahead_of_time_has_its_own_eta(self, ours: Leases) -> None:
        names = [leases.name(str(number), AT) for number in range(MAX_ARGUMENTS)]
        take(ours, *names)
        ours.mark_sent_again({name: seconds(60 + number) for number, name in enumerate(names)})
        ends = [status.ends_at for status in ours.statuses(names)]
        assert ends == sorted({at for at in ends if at is not None})

    def test_message_sent_ahead_of_time_is_not_sent_twice_while_it_waits(
        self, short: Leases, client: redis.Redis
    ) -> None:
        take(short, ONE, TWO)
        short.mark_sent_again(dict.fromkeys((ONE, TWO), seconds(0.1)))
        age_waiting(client, ONE, TWO)
        assert short.free_lost(1) == 1  # one message waits, the other was lost
        assert short.free_lost(1) == 0
        assert len(take(short, ONE, TWO)) == 1

    def test_message_that_is_sent_again_waits_until_its_eta_although_its_lease_is_renewed(self, ours: Leases) -> None:
        dispatch(ours, ONE)
        ours.mark_sent_again({ONE: minutes(5)})
        eta = ours.detail(ONE).at
        ours.renew([ONE])
        detail = ours.detail(ONE)
        assert (detail.step, detail.at) == ("ahead", eta)

    def test_only_leases_of_messages_with_a_future_eta_end_early(self, ours: Leases) -> None:
        assert take(ours, ONE, TWO, THREE) == [ONE, TWO, THREE]
        ours.renew([ONE], wait=seconds(4))
        ours.renew([TWO])
        ours.end_early([ONE, TWO, THREE])
        assert states(ours, ONE, TWO, THREE) == ["free", "in-progress", "in-progress"]

    def test_detail_of_a_received_message_has_the_end_of_its_lease(self, ours: Leases) -> None:
        taken = ours.take([ONE])
        detail = ours.detail(ONE)
        assert (detail.step, detail.at, detail.losses) == ("received", from_unix_ms(taken.ends_ms), 0)

    def test_lease_of_a_received_message_no_longer_counts_as_waiting(self, ours: Leases) -> None:
        taken = ours.take([ONE, TWO])
        with ours.alone(ONE) as attempts:
            attempts.done.add(ONE)
        ours.mark_dispatched([ONE, TWO], ends_ms=taken.ends_ms)
        assert ours.free_lost(0) == 0  # nothing is old enough
        one, two = ours.statuses([ONE, TWO])
        assert one.ends_at is not None
        assert two.ends_at is None

    def test_excess_waiting_leases_are_freed_oldest_first(
        self, short: Leases, ours: Leases, client: redis.Redis
    ) -> None:
        for name in (ONE, TWO, THREE):
            dispatch(ours, name)
        assert short.free_lost(3) == 0
        age_waiting(client, ONE, TWO, THREE)
        assert short.free_lost(2) == 1
        assert states(ours, ONE, TWO, THREE) == ["stuck", "in-progress", "in-progress"]
        assert short.free_lost(2) == 0

    def test_all_excess_leases_are_freed_in_one_call(self, ours: Leases, client: redis.Redis) -> None:
        names = [leases.name(str(number), AT) for number in range(3 * MAX_ARGUMENTS)]
        dispatch(ours, *names)
        client.zadd("qm:lease:trial-end:waiting", dict.fromkeys(names, 1_000))
        assert ours.free_lost(10) == len(names) - 10

    def test_just_dispatched_item_is_not_considered_lost(self, ours: Leases) -> None:
        dispatch(ours, ONE)
        assert ours.free_lost(0) == 0

    def test_item_is_not_considered_lost_for_one_lease(self, ours: Leases, client: redis.Redis) -> None:
        dispatch(ours, ONE)
        age_waiting(client, ONE)
        assert ours.free_lost(0) == 0
        client.zincrby("qm:lease:trial-end:waiting", -60_000, ONE)
        assert ours.free_lost(0) == 1

    def test_waiting_message_is_not_considered_lost_when_the_eta_of_another_item_has_just_come(
        self, ours: Leases, client: redis.Redis
    ) -> None:
        dispatch(ours, ONE)
        client.zadd("qm:lease:trial-end:waiting", {ONE: 1_000})  # its message has waited for long
        take(ours, TWO)
        ours.mark_sent_again({TWO: seconds(0)})  # a worker holds its message, and will renew its lease
        assert ours.free_lost(1) == 0

    def test_leases_and_cool_downs_that_ended_a_day_ago_are_removed(self, ours: Leases, client: redis.Redis) -> None:
        client.zadd("qm:lease:trial-end:running", {ONE: 1_000})
        client.zadd("qm:lease:trial-end:cooling", {TWO: 1_000})
        ours.free_lost(0)
        assert client.keys("qm:lease:*") == []


class TestHolding:
    def test_renewal_extends_and_never_shortens_a_lease(self, ours: Leases) -> None:
        dispatch(ours, ONE)
        ours.renew([ONE], wait=minutes(5))
        (long,) = ours.statuses([ONE])
        ours.renew([ONE])
        assert ours.statuses([ONE]) == [long]
        assert long.ends_at is not None

    def test_item_released_with_a_cool_down_can_be_taken_by_force(self, ours: Leases) -> None:
        take(ours, ONE, TWO)
        ours.release([ONE, TWO], cool_down=minutes(1))
        assert states(ours, ONE, TWO) == ["cooling", "cooling"]
        assert take(ours, ONE, TWO) == []
        assert take(ours, ONE, is_forced=True) == [ONE]
        assert states(ours, ONE, TWO) == ["in-progress", "cooling"]
        ours.release([TWO], cool_down=seconds(0.01))
        eventually(lambda: take(ours, TWO) == [TWO])

    def test_item_counts_as_failed_after_its_cool_down_until_it_is_taken(
        self, ours: Leases, client: redis.Redis
    ) -> None:
        client.zadd("qm:lease:trial-end:cooling", {ONE: 1_000})
        assert states(ours, ONE) == ["cooling"]
        assert ours.stats().cooling == 1
        assert take(ours, ONE) == [ONE]
        assert ours.stats().cooling == 0

    def test_item_that_was_taken_by_force_cools_down_no_longer(self, ours: Leases) -> None:
        take(ours, ONE)
        ours.release([ONE], cool_down=minutes(1))
        take(ours, ONE, is_forced=True)
        ours.release([ONE])
        assert states(ours, ONE) == ["free"]

    def test_item_of_another_program_is_held_once_for_one_lease(self, short: Leases, ours: Leases) -> None:
        short.hold_unknown([ONE])
        eventually(lambda: states(ours, ONE) == ["stuck"])
        ours.hold_unknown([ONE])  # known by now
        assert take(ours, ONE) == [ONE]

    def test_item_that_ended_a_moment_ago_is_not_held_for_another_program(
        self, client: redis.Redis, ours: Leases
    ) -> None:
        dispatch(ours, ONE)
        with ours.batch([ONE]) as attempts:
            attempts.done.add(ONE)
        ours.hold_unknown([ONE])  # by a scanner that had read it before
        client.zadd("qm:lease:trial-end:done", {ONE: 1_000})  # a moment later
        assert states(ours, ONE) == ["free"]
        assert take(ours, ONE) == [ONE]

    def test_item_that_we_flagged_is_not_held_for_another_program_when_its_due_time_changes(self, ours: Leases) -> None:
        ours.take([ONE], flagged_for=minutes(1))
        later = leases.name("room-1", AT + minutes(1))
        ours.hold_unknown([later])
        assert take(ours, later) == [later]

    def test_item_that_failed_is_not_held_for_another_program(self, client: redis.Redis, ours: Leases) -> None:
        client.zadd("qm:lease:trial-end:cooling", {ONE: 1_000})  # its cool-down is over
        ours.hold_unknown([ONE])
        assert take(ours, ONE) == [ONE]

    def test_full_server_finishes_what_is_in_progress(self, client: redis.Redis, ours: Leases) -> None:
        dispatch(ours, ONE, TWO)
        taken = ours.take([THREE])
        with ours.scan_lock() as holds_lock:
            assert holds_lock()
            client.config_set("maxmemory", 1)
            try:
                with pytest.raises(Unavailable):
                    ours.take([leases.name("room-4", AT)])
                ours.mark_dispatched([THREE], ends_ms=taken.ends_ms)
                assert ours.free_lost(3) == 0
                ours.renew([ONE])
                with ours.batch([ONE, TWO]) as attempts:
                    assert steps(ours, ONE, TWO) == ["started", "started"]
                    attempts.done.add(ONE)
                ours.mark_sent_again({TWO: minutes(1)})
                assert steps(ours, ONE, TWO, THREE) == ["ended", "ahead", "queued"]
                with ours.alone(THREE):
                    assert steps(ours, THREE) == ["started"]
                ours.release([THREE], cool_down=minutes(1))
                ours.end_early([TWO])
                RELEASE_SCAN_LOCK(client, ["qm:lease:trial-end:scan"], ["another scan"])
            finally:
                client.config_set("maxmemory", 0)
        assert steps(ours, THREE) == ["cooling"]


class TestEnd:
    def test_completed_items_leave_nothing_in_redis(
        self, client: redis.Redis, ours: Leases, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(leases, "DONE_FOR", seconds(0))
        for name in (ONE, TWO):
            dispatch(ours, name)
            with ours.alone(name) as attempts:
                attempts.done.add(name)
        with ours.batch([THREE]):
            pass
        ours.release([THREE])
        assert set(client.keys("qm:lease:*")) <= {"qm:lease:trial-end:done"}

    def test_done_items_that_were_sent_again_meanwhile_wait_no_longer(self, client: redis.Redis, ours: Leases) -> None:
        dispatch(ours, ONE, TWO)
        with ours.batch([ONE, TWO]) as attempts:
            ours.mark_sent_again({TWO: seconds(0)})
            attempts.done |= {ONE, TWO}
        assert client.keys("qm:lease:*") == ["qm:lease:trial-end:done"]

    def test_items_that_ended_and_flags_that_were_set_long_ago_are_forgotten(
        self, client: redis.Redis, ours: Leases
    ) -> None:
        client.zadd("qm:lease:trial-end:done", {ONE: 1_000})
        client.zadd("qm:lease:trial-end:flagged", {"room-1": 1_000})
        with ours.alone(TWO):
            pass
        assert client.keys("qm:lease:*") == ["qm:lease:trial-end:running"]


class TestCandidates:
    @pytest.mark.usefixtures("ours")
    def test_all_sets_of_a_system_that_is_switched_off_expire(self, client: redis.Redis) -> None:
        """Each part writes sets that do not exist yet, as the last one before the system is switched off."""
        kept_ms = leases.scripts.SETS_RETENTION_MS

        def fresh(*dispatched: str) -> Leases:
            client.flushdb()
            ours = Leases("trial-end", minutes(1))
            if dispatched:
                dispatch(ours, *dispatched)
            return ours

        def expired(*sets: str) -> None:
            keys = Leases("trial-end").keys._asdict()
            ttls = {name: client.pttl(key) for name, key in keys.items() if client.exists(key)}
            assert set(sets) <= set(ttls)
            assert {name: ttl for name, ttl in ttls.items() if not kept_ms - 600_000 < ttl <= kept_ms} == {}

        fresh().take([ONE], flagged_for=minutes(1))
        expired("running", "flagged")
        fresh(ONE)
        expired("waiting")
        fresh().hold_unknown([ONE])
        expired("running")
        fresh(ONE).renew([ONE])
        expired("running")
        ours = fresh(ONE)
        ours.renew([ONE])
        ours.mark_sent_again({ONE: minutes(1)})
        expired("waiting")
        fresh(ONE).release([ONE], cool_down=hours(1))
        expired("cooling")
        with fresh(ONE).alone(ONE):
            expired("running", "started")
        with fresh(ONE).batch([ONE]) as attempts:
            expired("running", "started")
            attempts.done.add(ONE)
        expired("done")

    def test_a_scan_keeps_the_sets_of_items_that_wait_for_long(self, client: redis.Redis, ours: Leases) -> None:
        dispatch(ours, ONE)
        client.pexpire(ours.keys.waiting, 60_000)
        ours.free_lost(1)
        assert client.pttl(ours.keys.waiting) > 60_000

    def test_candidates_are_the_leases_in_a_state_unless_there_are_too_many(
        self, ours: Leases, client: redis.Redis
    ) -> None:
        names = [leases.name(f"room-{number}", AT) for number in range(5_000)]
        waiting, ended, received, done, cooling = names[:2_000], names[2_000:4_000], *names[4_000:4_003]
        dispatch(ours, *names[:4_003])
        ours.renew(names[2_000:4_003])
        client.zadd("qm:lease:trial-end:running", dict.fromkeys(ended, 1_000))
        with ours.batch([done]) as attempts:
            attempts.done.add(done)
        ours.release([cooling], cool_down=minutes(1))

        assert ours.candidates("stuck", limit=2_000) == {*ended}
        assert ours.candidates("in-progress", limit=2_002) == {*waiting, received, done}
        assert ours.candidates("stuck", limit=1_999) is None
        assert ours.candidates("in-progress", limit=2_001) is None

    def test_a_sample_of_failed_items_has_some_whose_cool_down_is_over_and_some_that_cool_down(
        self, ours: Leases, client: redis.Redis
    ) -> None:
        names = [leases.name(f"room-{number}", AT) for number in range(200)]
        over, cooling = names[:100], names[100:]
        client.zadd("qm:lease:trial-end:cooling", dict.fromkeys(over, 1_000))
        ours.release(cooling, cool_down=minutes(1))
        sample = {*ours.cooling(limit=20)}
        assert (len(sample & {*over}), len(sample & {*cooling})) == (10, 10)


class TestScan:
    def test_only_one_scan_of_a_system_runs_at_a_time(self, ours: Leases) -> None:
        with ours.scan_lock() as first:
            assert first()
            with ours.scan_lock() as second:
                assert not second()
            assert first()
        with ours.scan_lock() as third:
            assert third()

    def test_a_crashed_scan_blocks_others_for_one_lease(self, short: Leases, ours: Leases) -> None:
        died = short.scan_lock().__enter__()
        assert died()
        with ours.scan_lock() as next_one:
            eventually(next_one)
            assert not died()

    def test_a_crashed_scan_blocks_others_for_at_most_15_s(self, clean: Servers) -> None:
        long = Leases("trial-end", minutes(60))
        with long.scan_lock() as holds_lock, redis_server() as client:
            assert holds_lock()
            assert 0 < client.pttl("qm:lease:trial-end:scan") <= 15_000

    def test_a_scan_takes_over_the_lock_that_the_last_one_of_its_process_could_not_release(
        self, ours: Leases, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as outage, ours.scan_lock() as lost:
            assert lost()
            outage.setattr(leases, "RELEASE_SCAN_LOCK", Mock(side_effect=redis.ConnectionError("gone")))
        with ours.scan_lock() as next_one:
            assert next_one()
            with ours.scan_lock() as another:
                assert not another()

    def test_a_scan_renews_its_lock_after_a_third_of_its_time_and_notices_its_loss(
        self, ours: Leases, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key, now = "qm:lease:trial-end:scan", [0.0]
        monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=lambda: now[0]))
        with ours.scan_lock() as holds_lock:
            for passed, is_renewed in ((0.0, True), (4.9, False), (0.2, True), (4.9, False), (0.2, True)):
                now[0] += passed
                assert holds_lock()
                assert (client.pttl(key) > 10_000) is is_renewed
                client.pexpire(key, 10_000)
            client.set(key, "another scan")
            now[0] += 5.1
            assert not holds_lock()
            assert not holds_lock()
        assert client.get(key) == "another scan"


# Attempts


class ProcessDies(BaseException):
    """Leaves no process the time to record an end."""


def die(ours: Leases, *names: str) -> None:
    """Start items, together if there are several, in a process that does not survive them."""
    with pytest.raises(ProcessDies):
        with ours.batch(names) if len(names) > 1 else ours.alone(*names):
            raise ProcessDies


def suspects(ours: Leases, *names: str) -> set[int]:
    with ours.batch(names) as attempts:
        return attempts.suspects


class TestAttempts:
    def test_items_that_ended_or_failed_are_not_suspected(self, client: redis.Redis, ours: Leases) -> None:
        assert suspects(ours, ONE, TWO) == set()
        with pytest.raises(RuntimeError):
            with ours.batch([ONE, TWO]):
                raise RuntimeError("failed as a whole")
        with pytest.raises(RuntimeError):
            with ours.alone(ONE):
                raise RuntimeError("failed")
        assert suspects(ours, ONE, TWO) == set()
        assert client.keys("qm:lease:*:started") + client.keys("qm:lease:*:losses") == []

    def test_an_unsuccessful_attempt_keeps_its_lease(self, ours: Leases) -> None:
        dispatch(ours, ONE)
        with ours.alone(ONE):
            pass
        (status,) = ours.statuses([ONE])
        assert status.ends_at is not None
        assert take(ours, ONE) == []

    def test_items_of_a_lost_batch_are_executed_alone_until_each_has_ended(self, ours: Leases) -> None:
        die(ours, ONE, TWO)
        assert suspects(ours, THREE, ONE, TWO) == {1, 2}
        with ours.alone(ONE):
            pass
        assert suspects(ours, THREE, ONE, TWO) == {2}

    def test_another_due_time_is_another_item(self, ours: Leases) -> None:
        die(ours, ONE, TWO)
        assert suspects(ours, leases.name("room-1", AT + hours(1)), THREE) == set()

    def test_item_that_had_not_started_is_not_suspected_when_its_process_dies(self, ours: Leases) -> None:
        dispatch(ours, ONE, TWO)
        ours.renew([ONE, TWO])  # received by a worker
        die(ours, ONE)
        assert suspects(ours, TWO, THREE) == set()

    def test_the_first_loss_is_retried_immediately_and_the_nth_after_a_doubling_cool_down(self, ours: Leases) -> None:
        die(ours, ONE)
        die(ours, ONE)
        cool_downs = []
        for _ in range(8):
            with pytest.raises(MustCoolDown) as raised:
                ours.alone(ONE).__enter__()
            cool_downs.append(raised.value.cool_down)
            assert suspects(ours, ONE, TWO) == {0}  # after its cool-down, too, it is executed alone
            die(ours, ONE)
        assert cool_downs[:4] == [minutes(1), minutes(2), minutes(4), minutes(8)]
        assert cool_downs[-1] == hours(1)
        now = local_now()
        assert ours.often_lost(now=now) == {"room-1": now}  # its lease is held
        ours.release([ONE])
        ((id, end),) = ours.often_lost(now=now).items()
        assert (id, now < end < now + minutes(61)) == ("room-1", True)

    def test_item_whose_worker_died_is_lost_until_a_scan_could_take_it(self, client: redis.Redis, ours: Leases) -> None:
        client.hset("qm:lease:trial-end:losses", ONE, f"{OFTEN_LOST}:{unix_ms(local_now())}")
        client.zadd("qm:lease:trial-end:running", {ONE: unix_ms(AT)})  # nobody has released it
        assert ours.often_lost(now=local_now()) == {"room-1": AT}

    def test_item_that_was_lost_often_is_lost_until_a_scan_could_take_it_after_its_cool_down(
        self, client: redis.Redis, ours: Leases
    ) -> None:
        client.hset("qm:lease:trial-end:losses", ONE, f"{OFTEN_LOST}:{unix_ms(local_now())}")
        client.zadd("qm:lease:trial-end:cooling", {ONE: unix_ms(AT)})
        assert ours.often_lost(now=local_now()) == {"room-1": AT}

    def test_losses_of_a_day_ago_do_not_count(self, client: redis.Redis, ours: Leases) -> None:
        losses = "qm:lease:trial-end:losses"
        client.hset(losses, mapping={ONE: "7:1000", TWO: "7:1000"})
        assert ours.often_lost(now=local_now()) == {}
        die(ours, ONE)
        with ours.alone(ONE):  # the first loss
            assert client.hkeys(losses) == [ONE]
            assert 0 < client.pttl(losses) <= RETENTION_MS

    def test_outdated_start_records_are_removed(self, client: redis.Redis, ours: Leases) -> None:
        die(ours, ONE, TWO)
        client.zadd("qm:lease:trial-end:started", {ONE: 1_000})
        assert suspects(ours, THREE) == set()
        assert client.zrange("qm:lease:trial-end:started", 0, -1) == [TWO]

    def test_items_start_without_being_recorded_if_redis_is_unavailable(
        self, ours: Leases, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        away = BestEffortClient("redis://127.0.0.1:1/0", records="Starts")
        monkeypatch.setattr(leases, "_recorder", lambda: away)
        assert suspects(ours, ONE, TWO) == set()
        with ours.alone(ONE):
            pass

    def test_starts_are_recorded_again_only_a_while_after_redis_was_unavailable(
        self, clean: Servers, client: redis.Redis, ours: Leases, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_client, "BEST_EFFORT_PAUSE", 60.0)
        recorder = BestEffortClient("redis://127.0.0.1:1/0", records="Starts")
        monkeypatch.setattr(leases, "_recorder", lambda: recorder)
        with ours.alone(ONE):
            pass
        recorder._client = make_client(clean.valkey.url)  # it is back
        with ours.alone(ONE):
            assert client.keys("qm:lease:*") == []
        monkeypatch.setattr(recorder, "_try_again_at", 0.0)  # a while later
        with ours.alone(ONE):
            assert "qm:lease:trial-end:started" in client.keys("qm:lease:*")
