"""A beat that stands by: run as many as you like, one of them fires the schedule.

Guarantee:
- One leads. A dead leader is followed after at most its lock's time plus one loop; one that ended in order,
  after one loop.
- Nothing ends the beat: without Redis or without the lock it stands by, and comes back by itself. An entry that has
  ended stays in the schedule and runs no more; one that cannot be loaded or evaluated is skipped and logged once.
- A tick is published at least once. An entry counts as run only after its message was sent, so a failed
  publish is repeated in the next loop, however long the broker is away.
- A leader that was stopped past its lock finds out before it publishes anything.
- Entries fall due by the clock of Redis, whatever this machine's clock says.

A tick is sent twice when the leader crashes between sending and noting it, when a reply of the broker is lost,
and when the leader is stopped in the instant between its last look at the lock and sending: what ticks start
must bear that.

Options: `beat_max_loop_interval` (seconds, 1), `redbeat_lock_timeout` (seconds, 6), `redbeat_redis_url` and
`redbeat_redis_options` with a `socket_timeout` below the lock's time and a `retry` that does not repeat.

The schedule itself is RedBeat's, in its own keys; its lock, which exits when it is lost, is not used.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from celery.beat import SchedulingError
from celery.utils.log import get_logger
from kombu.common import ignore_errors
from kombu.exceptions import OperationalError
from kombu.utils.objects import cached_property
from kombu.utils.url import maybe_sanitize_url
from redbeat.decoder import to_timestamp
from redbeat.schedulers import RedBeatScheduler, RedBeatSchedulerEntry, get_redis
from redis.client import NEVER_DECODE
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from queue_manager.beat import old_schedule, scan_ticks
from queue_manager.beat.leader_lock import LeaderLock
from queue_manager.broker.options import timeouts
from queue_manager.core.clock import ServerClock, seconds

logger = get_logger(__name__)
CLOCK_TOLERANCE = seconds(1)  # two samples of one clock may differ by a round trip


class LeadershipLost(Exception):
    """The lock ended or is another's: nothing more may be published."""


class BrokerAway(Exception):
    """The message could not be sent now; it stays due."""


def _is_wrong_type(error: RedisError) -> bool:
    """Return True if the key of an entry holds something other than a hash."""
    return "WRONGTYPE" in str(error)


class StoredEntry(RedBeatSchedulerEntry):
    """One line of the schedule, as Redis remembers it."""

    @classmethod
    def from_key(cls, key: str, app: Any = None) -> Self:
        """Load the entry. One that claims to have run later than its next run would be is due now.

        It was written while the clock of Redis, or of a beat of an older version, ran ahead; waiting for that time
        could take hours.
        """
        entry: Self = super().from_key(key, app=app)
        if entry.last_run_at is not None:
            now = entry.default_now()
            until_next: timedelta | None = entry.schedule.remaining_estimate(now)
            if until_next is not None and entry.last_run_at - now > until_next:
                entry.last_run_at = None
        return entry


class LeaderScheduler(RedBeatScheduler):
    """RedBeat's scheduler for one of several beats."""

    Entry = StoredEntry

    def __init__(self, app: Any, **options: Any) -> None:
        # lazy: the schedule in Redis is the leader's to write, and we do not lead yet.
        super().__init__(app, **{**options, "lazy": True})
        self._client = get_redis(app)
        self._shares_no_keys = app.redbeat_conf.lock_key != old_schedule.LOCK
        self._lock = LeaderLock(self._client, app.redbeat_conf.lock_key, lease=seconds(self.lock_timeout))
        self._clock = ServerClock(self._redis_time)
        self._last_loop_at = datetime.min.replace(tzinfo=UTC)
        # Celery and RedBeat ask the app for the time wherever they judge or note when an entry runs.
        app.now = lambda: self._clock.now().astimezone(app.timezone)
        self._redis = f"Redis at {maybe_sanitize_url(app.redbeat_conf.redis_url)}"
        self._state = ""
        self._skipped: dict[str, str] = {}  # why, by the entry's key
        # RedBeat's own lock blocks in the signal `beat_init` until it is free; without a key it is left out.
        self.lock_key: str | None = None

    @property
    def epoch(self) -> int:
        """Number of the take-over by which this beat leads, 0 while it stands by."""
        return self._lock.epoch

    def tick(self, **_: Any) -> float:
        """Lead for one loop, or stand by; return the seconds until the next."""
        waits = []
        try:
            if self._leads():
                self._follow_clock()
                waits = [self.maybe_due(entry) for entry in self.schedule.values()]
                self._say(f"leading (epoch {self.epoch})")
        except BrokerAway as error:
            self._say(f"leading (epoch {self.epoch}), but the broker takes no messages", error)
        except LeadershipLost:
            self._stand_by("the lock was lost")
        except (RedisConnectionError, RedisTimeoutError) as error:
            self._stand_by(f"{self._redis} is unreachable", error)
        except RedisError as error:
            self._stand_by(f"{self._redis} refuses", error)
        return min([wait for wait in waits if wait] + [self.max_interval])

    def close(self) -> None:
        """Give the lock back, so that another beat leads after its next loop, and close the connections."""
        with suppress(RedisError):
            self._lock.release()
        super().close()

    def _leads(self) -> bool:
        """Keep the lock or try for it; whoever takes it writes the schedule."""
        if self._shares_no_keys and (older := old_schedule.leader(self._client)):
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
        self.setup_schedule()
        self._say(f"leading (epoch {self.epoch})")
        return True

    def _follow_clock(self) -> None:
        """Write the schedule anew when the clock of Redis was set back: its entries wait for the old time."""
        now, before = self._clock.now(), self._last_loop_at
        self._last_loop_at = now
        if now + CLOCK_TOLERANCE < before:
            logger.warning("the clock of Redis was set back by %.1f s", (before - now).total_seconds())
            self.setup_schedule()

    def _redis_time(self) -> datetime:
        unix_seconds, microseconds = self._client.time()
        return datetime.fromtimestamp(unix_seconds, UTC) + timedelta(microseconds=microseconds)

    def _stand_by(self, reason: str, error: Exception | None = None) -> None:
        self._lock.forget()
        self._say(f"standing by: {reason}", error)

    def _say(self, state: str, error: Exception | None = None) -> None:
        """Log a change of state, with the error that made it; say nothing while the state lasts."""
        if state == self._state:
            return
        self._state = state
        if error is None:
            logger.info("%s", state)
        else:
            logger.error("%s (%s)", state, error)

    # Loading

    @property
    def schedule(self) -> dict[str, StoredEntry]:
        """The entries that are due, and the one that is due next. An entry that cannot be loaded is skipped."""
        now = to_timestamp(self.app.now())
        keys = self._keys_due("0", now) + self._keys_due(f"({now}", now + self.max_interval, "LIMIT", 0, 1)
        loaded = {key: self._load(key) for key in keys}
        for key in self._skipped.keys() - loaded.keys():
            del self._skipped[key]
        return {entry.name: entry for entry in loaded.values() if entry is not None}

    def _keys_due(self, *bounds: Any) -> list[str]:
        command = ("ZRANGEBYSCORE", self.app.redbeat_conf.schedule_key, *bounds)
        # As bytes: one key that is not UTF-8 must not fail the command.
        keys = get_redis(self.app).execute_command(*command, **{NEVER_DECODE: True})
        return [key.decode(errors="backslashreplace") for key in keys]

    def _load(self, key: str) -> StoredEntry | None:
        client = get_redis(self.app)
        try:
            if not client.hexists(key, "definition"):
                if not client.zrem(self.app.redbeat_conf.schedule_key, key):
                    raise LookupError("its key is not UTF-8")
                logger.warning("removed %s from the schedule: it has no definition", key)
                return None
            entry = self.Entry.from_key(key, app=self.app)
            if entry.key != key:
                # Its runs would be recorded under the other key, so that it would be due in every loop.
                raise ValueError(f"its name {entry.name!r} belongs to the key {entry.key}")
            return entry
        except RedisError as error:
            if not _is_wrong_type(error):
                raise
            self._skip(key, error)
        except Exception as error:
            self._skip(key, error)
        return None

    def _skip(self, key: str, error: Exception) -> None:
        """Log that an entry is skipped, once for each reason."""
        reason = f"{type(error).__name__}: {error}"
        if self._skipped.get(key) != reason:
            self._skipped[key] = reason
            logger.error("skipping the schedule entry %s, which cannot be used (%s)", key, reason)

    def update_from_dict(self, dict_: dict[str, Any]) -> None:
        """Store the entries of the configuration. What is stored of one and cannot be loaded is replaced."""
        client = get_redis(self.app)
        for name in dict_:
            key = self.Entry.generate_key(self.app, name)
            try:
                if client.hexists(key, "definition"):
                    self.Entry.from_key(key, app=self.app)
            except RedisError as error:
                if not _is_wrong_type(error):
                    raise
                client.delete(key)
            except Exception as error:
                logger.error("replacing the schedule entry %s, which cannot be used (%s)", key, error)
                client.delete(key)
        super().update_from_dict(dict_)

    # Publishing

    def maybe_due(self, entry: StoredEntry, **_: Any) -> float | None:
        """Publish `entry` if it is due, and only then move it on.

        Returns the seconds until its next run; `None` if there is none or the entry cannot be evaluated.
        """
        try:
            is_due, wait = entry.is_due()
            if is_due:
                self._publish(entry)
                self.reserve(entry)
            return wait if wait is None else float(wait)
        except (BrokerAway, LeadershipLost, RedisError):
            raise
        except Exception as error:
            self._skip(entry.key, error)
            return None

    def _publish(self, entry: StoredEntry) -> None:
        """Send the entry's message, without waiting for a broker that is away.

        A message that no broker would take is logged and left out, so that it does not hold up the others.

        Raises:
            BrokerAway: it was not sent, or the reply was lost.
            LeadershipLost: it was not sent, because another beat may lead by now.
        """
        # Our next loop is the retry; Celery's would go on after the lock has ended.
        entry.options = {**entry.options, "retry": False}
        if "epoch" in entry.kwargs:
            entry.kwargs = {**entry.kwargs, "epoch": self.epoch}
        tick = scan_ticks.issue(self._client, entry.name)
        entry.options["headers"] = {**(entry.options.get("headers") or {}), scan_ticks.HEADER: tick}
        try:
            producer = self.producer
            # Connecting took its time: look at the lock last.
            if not self._lock.keep():
                raise LeadershipLost
            self.apply_async(entry, producer=producer, advance=False)
        except (SchedulingError, OperationalError) as error:
            cause = error.__context__ if isinstance(error, SchedulingError) else error
            broker_errors = (
                OperationalError,
                *self.connection.connection_errors,
                *self.connection.channel_errors,
            )
            if isinstance(cause, broker_errors):
                self._disconnect()
                raise BrokerAway(str(cause)) from error
            logger.exception("cannot send %s (%s)", entry.name, entry.task)
        else:
            logger.info("sent %s (%s)", entry.name, entry.task)

    @cached_property
    def connection(self) -> Any:
        """The connection to the broker. It gives up early enough for the lock to outlive an attempt."""
        options = timeouts(self.app.conf.broker_write_url, self.lock_timeout / 4)
        return self.app.connection_for_write(transport_options=options)

    def _ensure_connected(self) -> Any:
        # One attempt: with `broker_connection_max_retries` unset, Celery's way waits for ever.
        return self.connection.ensure_connection(max_retries=0)

    def _disconnect(self) -> None:
        self.__dict__.pop("producer", None)
        connection = self.__dict__.pop("connection")
        ignore_errors(connection, connection.release)
