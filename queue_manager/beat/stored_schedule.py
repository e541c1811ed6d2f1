"""The schedule in Redis: which entries are due, and which ones cannot be used.

Guarantee: an entry that cannot be stored, loaded or evaluated, or takes too long to evaluate, is skipped and logged
once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from celery.beat import SchedulingError
from celery.utils.log import get_logger
from redbeat.schedulers import get_redis
from redis.client import NEVER_DECODE
from redis.exceptions import RedisError

from queue_manager.beat.entry import EntryMissing, StoredEntry
from queue_manager.beat.leader_lock import LeadershipLost
from queue_manager.core.errors import reason

logger = get_logger(__name__)
MAX_EVALUATION = 1.0  # seconds of processor time for the schedule of an entry; the lock must be extended meanwhile


class StoredSchedule:
    """The entries of an app in Redis."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._client = get_redis(app)
        self._skipped: dict[str, str] = {}  # reason by entry key
        self._slow: dict[str, Any] = {}  # definition by the key of an entry that exceeded `MAX_EVALUATION`

    def due_entries(self, *, within: float) -> tuple[list[StoredEntry], float]:
        """Return the entries that are due, and the seconds until the next one, at most `within`."""
        now = self._app.now().timestamp()
        next_runs = self._next_runs(0, now + within)
        loaded = {key: self._load(key) for key, next_run in next_runs.items() if next_run <= now}
        for key in self._skipped.keys() - loaded.keys():
            del self._skipped[key]
        wait = min((next_run - now for next_run in next_runs.values() if next_run > now), default=within)
        return [entry for entry in loaded.values() if entry is not None], wait

    def bring_forward(self, still_leads: Callable[[], bool]) -> None:
        """Bring forward the next runs that were computed while the clock of Redis was ahead.

        RedBeat does this for the entries of the configuration, and not for those that a program saved. Only an earlier
        run is stored, and only if the entry still exists.

        Raises:
            LeadershipLost: `still_leads` returned False.
        """
        for key in self._next_runs(self._app.now().timestamp(), "inf"):
            if not still_leads():
                raise LeadershipLost
            if (entry := self._load(key)) is not None:
                with self.skipping(key), self.evaluating(key):
                    self._client.zadd(self._app.redbeat_conf.schedule_key, {key: entry.score}, xx=True, lt=True)

    def _next_runs(self, since: float, until: float | str) -> dict[str, float]:
        """Return the next runs in Unix seconds by the key of the entry."""
        command = ("ZRANGEBYSCORE", self._app.redbeat_conf.schedule_key, since, until, "WITHSCORES")
        # As bytes, because a key that is not UTF-8 must not fail the command.
        options = {NEVER_DECODE: True, "withscores": True, "score_cast_func": float}
        entries = self._client.execute_command(*command, **options)
        return {key.decode(errors="backslashreplace"): score for key, score in entries}

    def _load(self, key: str) -> StoredEntry | None:
        """Return an entry; `None` if it cannot be loaded."""
        try:
            if key in self._slow and self._slow[key] == self._client.hget(key, "definition"):
                return None
            with self.evaluating(key):
                entry = StoredEntry.from_key(key, app=self._app)
            if entry.key != key:
                # Its runs would be recorded under the other key, so it would be due in every loop.
                raise ValueError(f"its name {entry.name!r} belongs to the key {entry.key}")
            return entry
        except EntryMissing:
            if self._client.zrem(self._app.redbeat_conf.schedule_key, key):
                logger.warning("removed %s from the schedule: it has no definition", key)
            else:
                self._skip(key, LookupError("its key is not UTF-8"))
        except Exception as error:
            if not _is_of_entry(error):
                raise
            self._skip(key, error)
        return None

    @contextmanager
    def evaluating(self, key: str) -> Iterator[None]:
        """Measure the evaluation of an entry; one that takes too long is skipped until its definition changes."""
        began = time.thread_time()
        yield
        if time.thread_time() - began > MAX_EVALUATION:
            self._slow[key] = self._client.hget(key, "definition")
            self._skip(key, TimeoutError(f"its schedule takes more than {MAX_EVALUATION:g} s to evaluate"))

    @contextmanager
    def skipping(self, key: str) -> Iterator[None]:
        """Skip an entry that raises an error of its own."""
        try:
            yield
        except Exception as error:
            if not _is_of_entry(error):
                raise
            self._skip(key, error)

    @contextmanager
    def storing(self, name: str) -> Iterator[None]:
        """Skip an entry that cannot be stored, instead of running the one that was stored under its name before."""
        try:
            yield
        except RedisError:
            raise
        except Exception as error:
            key = StoredEntry.generate_key(self._app, name)
            self._client.zrem(self._app.redbeat_conf.schedule_key, key)
            self._skip(key, error)

    def _skip(self, key: str, error: Exception) -> None:
        """Log that an entry is skipped, once per reason."""
        why = f"{type(error).__name__}: {reason(error)}"
        if self._skipped.get(key) != why:
            self._skipped[key] = why
            logger.error("skipping the schedule entry %s, which cannot be used (%s)", key, why)

    def missing(self, names: Iterable[str]) -> set[str]:
        """Return the keys of those of these entries that are not scheduled or have no definition."""
        keys = [StoredEntry.generate_key(self._app, name) for name in names]
        if not keys:
            return set()
        scores = self._client.zmscore(self._app.redbeat_conf.schedule_key, keys)
        if None not in scores and self._client.exists(*keys) == len(keys):
            return set()
        return {key for key, score in zip(keys, scores, strict=True) if score is None or not self._client.exists(key)}

    def delete_unusable(self, names: Iterable[str]) -> None:
        """Delete those of these entries that cannot be loaded."""
        for name in names:
            key = StoredEntry.generate_key(self._app, name)
            try:
                if self._client.hexists(key, "definition"):
                    StoredEntry.from_key(key, app=self._app)
            except Exception as error:
                if not _is_of_entry(error):
                    raise
                logger.error("replacing the schedule entry %s, which cannot be used (%s)", key, error)
                self._client.delete(key)


def _is_of_entry(error: Exception) -> bool:
    """Return False if an error concerns all entries: one of the server or the broker, or the lock was lost.

    A key of an entry may hold something other than a hash, or a text instead of a number.
    """
    if isinstance(error, RedisError):
        return "WRONGTYPE" in str(error) or "not an integer" in str(error)
    return not isinstance(error, SchedulingError | LeadershipLost)
