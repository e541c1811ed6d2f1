"""Celery beat with leader election: of any number of beats, one publishes the schedule.

Guarantee:
- One beat leads. A dead leader is replaced after at most the lock timeout plus one loop, a leader that shut down after
  one loop.
- The beat never exits on errors: without Redis or without the lock it stands by and recovers. An entry that has ended
  stays in the schedule and does not run; an entry that cannot be stored, loaded or evaluated, or takes too long to
  evaluate, is skipped and logged once.
- A tick is published at least once. An entry is recorded as run only after its message was sent, so a failed publish is
  repeated in the next loop.
- A leader that was suspended past its lock timeout notices it before it publishes.
- Entries fall due by the clock of Redis, regardless of the clock of this machine. An entry that has never run is due.
- Entries that are due together are sent together, if the transport can do that.

A tick is sent twice if the leader crashes before recording it, if a reply of the broker is lost, or if the leader is
suspended between the last check of the lock and sending. Scans must therefore be idempotent.

Options: `beat_max_loop_interval` (seconds, 1), `redbeat_lock_timeout` (seconds, 6), `redbeat_redis_url` and
`redbeat_redis_options` with a `socket_timeout` below the lock timeout and a `retry` without retries.

The schedule is RedBeat's. RedBeat's lock is not used, because the beat exits when it is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from celery.beat import SchedulingError
from celery.utils.log import get_logger
from kombu.common import ignore_errors
from kombu.exceptions import BatchPublishError, OperationalError
from kombu.utils.objects import cached_property
from kombu.utils.url import maybe_sanitize_url
from redbeat.schedulers import RedBeatScheduler, get_redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from queue_manager.beat import old_schedule, scan_ticks, status
from queue_manager.beat.entry import StoredEntry
from queue_manager.beat.leader_lock import LeaderLock, LeadershipLost
from queue_manager.beat.stored_schedule import StoredSchedule
from queue_manager.broker.options import timeouts
from queue_manager.core.clock import Pace, ServerClock, minutes, seconds
from queue_manager.core.errors import reason
from queue_manager.core.redis_client import time_of
from queue_manager.telemetry import tracing

logger = get_logger(__name__)
CLOCK_TOLERANCE = seconds(1)  # two samples of one clock may differ by a round trip
SCHEDULE_CHECK_INTERVAL = minutes(1)
MIN_WAIT = 0.001  # seconds between two loops


class BrokerAway(Exception):
    """The broker is unavailable; the entries stay due."""


class MessageRefused(BrokerAway):
    """The broker refuses a message; its entry stays due."""


class LeaderScheduler(RedBeatScheduler):
    """RedBeat's scheduler with leader election."""

    Entry = StoredEntry

    def __init__(self, app: Any, **options: Any) -> None:
        # lazy, because only the leader writes the schedule.
        super().__init__(app, **{**options, "lazy": True})
        self._client = get_redis(app)
        self._shares_no_keys = app.redbeat_conf.lock_key != status.OLD_LEADER_LOCK
        self._lock = LeaderLock(self._client, app.redbeat_conf.lock_key, lease=seconds(self.lock_timeout))
        self._clock = ServerClock(self._redis_time)
        self._older_checks = Pace(seconds(self.lock_timeout))
        self._schedule_checks = Pace(SCHEDULE_CHECK_INTERVAL)
        self._stored = StoredSchedule(app)
        self._unstored: set[str] = set()  # keys of entries of the configuration that are not in the schedule
        self._last_loop_at = datetime.min.replace(tzinfo=UTC)
        # Celery and RedBeat use the time of the app for due times and last runs.
        app.now = lambda: self._clock.now().astimezone(app.timezone)
        self._redis = f"Redis at {maybe_sanitize_url(app.redbeat_conf.redis_url)}"
        self._state = ""
        # RedBeat's lock blocks in the signal `beat_init` until it is free; without a key it is disabled.
        self.lock_key: str | None = None

    @property
    def epoch(self) -> int:
        """Epoch of this leader; 0 while it stands by."""
        return self._lock.epoch

    def tick(self, **_: Any) -> float:
        """Run one loop as leader or standby; return the seconds until the next loop."""
        waits: list[float] = []
        try:
            if self._leads():
                self._follow_clock()
                self._restore_schedule()
                due, wait = self._stored.due_entries(within=self.max_interval)
                waits = [wait, *self._run(due)]
                self._log_state(f"leading (epoch {self.epoch})")
        except BrokerAway as error:
            self._log_state(f"leading (epoch {self.epoch}), but the broker takes no messages", error)
        except LeadershipLost:
            self._stand_by("the lock was lost")
        except (RedisConnectionError, RedisTimeoutError) as error:
            self._stand_by(f"{self._redis} is unreachable", error)
        except RedisError as error:
            self._stand_by(f"{self._redis} refuses", error)
        return min([*waits, float(self.max_interval)])

    def close(self) -> None:
        """Release the lock, so that another beat leads after its next loop, and close the connections.

        The app gets its own clock back.
        """
        self.app.__dict__.pop("now", None)
        with suppress(RedisError):
            self._lock.release()
        super().close()

    def _leads(self) -> bool:
        """Extend or try to acquire the lock; write the schedule after a takeover. Return True if this beat leads.

        A lock that was extended just now is not extended again.
        """
        if self._lock.is_fresh():
            return True
        if older := self._older_leader():
            if self.epoch:
                self._lock.release()
            self._stand_by(f"a beat of release 0.1 leads: {older}")
            return False
        if self.epoch and self._lock.extend():
            return True
        holder = self._lock.acquire()
        if not self.epoch:
            self._stand_by(f"lock held by {holder}")
            return False
        if self._shares_no_keys and (moved := old_schedule.move_entries(self._client, self.app)):
            logger.info("moved %d schedule entries of release 0.1 to our own keys", moved)
        self._write_schedule()
        self._log_state(f"leading (epoch {self.epoch})")
        return True

    def _write_schedule(self) -> None:
        """Store the entries of the configuration, and the next runs of all entries by the current clock of Redis."""
        self._store_configuration()
        self._stored.bring_forward(self._lock.keep)

    def _store_configuration(self) -> None:
        self.setup_schedule()
        self._unstored = self._stored.missing(self.app.conf.beat_schedule)

    def _older_leader(self) -> str | None:
        """Return the leading beat of release 0.1, for which it looks once per lease while this beat leads."""
        if not self._shares_no_keys or (self.epoch and not self._older_checks.allows()):
            return None
        return status.older_leader(self._client)

    def _follow_clock(self) -> None:
        """Rewrite the schedule if the clock of Redis was set back, because its entries wait for the old time."""
        now, before = self._clock.now(), self._last_loop_at
        self._last_loop_at = now
        if now + CLOCK_TOLERANCE < before:
            logger.warning("the clock of Redis was set back by %.1f s", (before - now).total_seconds())
            self._write_schedule()

    def _restore_schedule(self) -> None:
        """Write the schedule again if another program has deleted a key of it; look for that once a minute."""
        if not self._schedule_checks.allows():
            return
        if missing := self._stored.missing(self.app.conf.beat_schedule) - self._unstored:
            self._store_configuration()
            if restored := missing - self._unstored:
                logger.warning("wrote %s to the schedule again, because a key was deleted", ", ".join(sorted(restored)))

    def _redis_time(self) -> datetime:
        return time_of(self._client.time())

    def _stand_by(self, reason: str, error: Exception | None = None) -> None:
        self._lock.forget()
        self._log_state(f"standing by: {reason}", error)

    def _log_state(self, state: str, error: Exception | None = None) -> None:
        """Log a change of state with its error; log nothing while the state is unchanged."""
        if state != self._state:
            self._state = state
            if error is None:
                logger.info("%s", state)
            else:
                logger.error("%s (%s)", state, reason(error))

    def update_from_dict(self, dict_: dict[str, Any]) -> None:
        """Store entries, each on its own. Stored ones that cannot be loaded are replaced."""
        self._stored.delete_unusable(dict_)
        for name, entry in dict_.items():
            with self._stored.storing(name):
                super().update_from_dict({name: entry})

    def _maybe_entry(self, name: str, entry: Any) -> StoredEntry:
        """Return an entry of the configuration that has never run, and so is due now; RedBeat adds a stored last run.

        Celery sets the last run to the present, with which a new entry would wait for a whole period.
        """
        made: StoredEntry = super()._maybe_entry(name, entry)
        made.last_run_at = None
        return made

    def _run(self, entries: Iterable[StoredEntry]) -> list[float]:
        """Publish those that are due, then record their runs. Returns the seconds until the next runs of the entries.

        An entry that cannot be evaluated is skipped.
        """
        waits, due = [], []
        for entry in entries:
            with self._stored.skipping(entry.key), self._stored.evaluating(entry.key):
                is_due, wait = entry.is_due()
                if is_due:
                    due.append(entry)
                elif wait is not None:
                    waits.append(float(wait))
        return [*waits, *self._send(due)] if due else waits

    def _send(self, entries: Sequence[StoredEntry]) -> list[float]:
        """Publish entries, and record their runs; return the seconds until their next runs.

        They are published together, if the transport can do that. If the broker refuses some of the messages, the
        entries are published one by one, so that the others are recorded.
        """
        if self._is_sent_together():
            try:
                return self._record(self._publish(entries))
            except MessageRefused:
                if len(entries) == 1:
                    raise
        waits, refusal = [], None
        for entry in entries:
            try:
                waits += self._record(self._publish([entry]))
            except MessageRefused as error:
                refusal = error
        if refusal is not None:
            raise refusal
        return waits

    def _record(self, entries: Iterable[StoredEntry]) -> list[float]:
        """Record runs that have begun; return the seconds until the next ones."""
        waits = []
        for entry in entries:
            with self._stored.skipping(entry.key):
                if next_run := self.reserve(entry).due_at:
                    waits.append(max((next_run - self.app.now()).total_seconds(), MIN_WAIT))
        return waits

    def _is_sent_together(self) -> bool:
        """Return True if a batch of messages is sent at its end, and not each one at once. Raises `BrokerAway`."""
        with self._broker_errors():
            return bool(getattr(self.producer.channel, "supports_batch_publish", False))

    @contextmanager
    def _broker_errors(self) -> Iterator[None]:
        try:
            yield
        except (SchedulingError, BatchPublishError, OperationalError) as error:
            root: BaseException = error
            while cause := root.__cause__ or root.__context__:
                root = cause
            is_refused = isinstance(root, self.connection.channel_errors)
            self._disconnect()
            raise (MessageRefused if is_refused else BrokerAway)(str(root)) from error

    def _publish(self, entries: Iterable[StoredEntry]) -> list[StoredEntry]:
        """Send the messages of `entries` together, without waiting for an unavailable broker; return whose run is over.

        A message that cannot be serialized or routed is logged and skipped, so that it does not block other entries.

        Raises:
            BrokerAway: they were not sent, or the reply was lost.
            MessageRefused: some of them were not sent.
            LeadershipLost: they were not sent, because another beat may lead.
        """
        over, sent = [], []
        with self._broker_errors(), self.producer.batch():
            for entry in entries:
                with self._stored.skipping(entry.key):
                    if self._add_message(entry):
                        sent.append(entry)
                    over.append(entry)
        for entry in sent:
            logger.info("sent %s (%s)", entry.name, entry.task)
        return over

    def _add_message(self, entry: StoredEntry) -> bool:
        """Publish the entry's message with those of others; return False if it cannot be serialized or routed."""
        # The next loop is the retry; Celery's retry could continue after the lock expired.
        entry.options = {**entry.options, "retry": False}
        if "epoch" in entry.kwargs:
            entry.kwargs = {**entry.kwargs, "epoch": self.epoch}
        tick = scan_ticks.issue(self._client, entry.name)
        given = {**(entry.options.get("headers") or {}), scan_ticks.TICK_HEADER: tick}
        # Connecting may take time, so the lock is checked last.
        if not self._lock.keep():
            raise LeadershipLost
        try:
            with tracing.publishing(entry.options.get("queue") or entry.task, attributes={"celery.task": entry.task}):
                entry.options["headers"] = {**given, **tracing.message_headers()}
                self.apply_async(entry, producer=self.producer, advance=False)
        except SchedulingError as error:
            of_broker = (OperationalError, *self.connection.connection_errors, *self.connection.channel_errors)
            if isinstance(error.__context__, of_broker):
                raise
            logger.exception("cannot send %s (%s)", entry.name, entry.task)
            return False
        return True

    @cached_property
    def connection(self) -> Any:
        """The connection to the broker. It gives up early enough for the lock to outlive an attempt."""
        options = timeouts(self.app.conf.broker_write_url, self.lock_timeout / 4)
        return self.app.connection_for_write(transport_options=options)

    def _ensure_connected(self) -> Any:
        # One attempt, because Celery retries forever if `broker_connection_max_retries` is unset.
        return self.connection.ensure_connection(max_retries=0)

    def _disconnect(self) -> None:
        self.__dict__.pop("producer", None)
        connection = self.__dict__.pop("connection")
        ignore_errors(connection, connection.release)
