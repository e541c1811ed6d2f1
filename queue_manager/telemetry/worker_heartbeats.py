"""Heartbeats of workers, every 5 seconds until shutdown: name, release, consumed queues, activity, and why they pause.

Guarantee: a worker that was killed or lost its connection is offline after `OFFLINE_AFTER`, by the clock of Redis.
Recording a heartbeat never raises and waits at most `HEARTBEAT_TIMEOUT`. A heartbeat records its time; if something has
changed, it is full. The activity, what the processes of the worker execute, has a bounded number of processes and
tasks, and texts of a bounded length.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import version
from typing import Annotated, Self

import msgspec
import redis
from pydantic import Field

from queue_manager.core.clock import from_unix_ms, hours, milliseconds, seconds, unix_ms
from queue_manager.core.json_types import Moment
from queue_manager.core.process import PerProcess
from queue_manager.core.redis_client import Script, make_client, time_of
from queue_manager.core.settings import redact_url, settings

WORKERS_KEY = "qm:workers"
DETAILS_KEY = "qm:workers:details"
ACTIVITY_KEY = "qm:workers:activity"
OWN_RELEASE = version("queue-manager")
OFFLINE_AFTER = seconds(16)  # three heartbeats, so that one or two may be lost, and a second for delays
FULL_INTERVAL = 60.0  # seconds between two full heartbeats of a worker of which nothing changes
RETENTION = hours(1)  # of the keys after the last full heartbeat
HEARTBEAT_TIMEOUT = 0.5  # seconds that a worker waits for Redis
MAX_PROCESSES_SHOWN = 64
MAX_TASKS_SHOWN = 64
"""Of one worker; its processes execute one task or one batch each, threads one task each."""
MAX_ITEM_ID_LENGTH = 512  # characters; a longer id is left out
SHORT_TASK_MS = 500
_DEFAULT_PORT = re.compile(r":(27017|6379|26379|5672)$")
RATE_CHANGE = 0.25  # part by which the rate differs before that is a change of the activity

# Records the heartbeat of a worker. The first one, and each one that is asked to be full, also records its details and
# its activity, deletes workers that are offline, and extends the keys.
#
# KEYS[1]  workers: sorted set of names by the time of their last heartbeat in ms
# KEYS[2]  hash of the details as JSON, by name
# KEYS[3]  hash of the activity, by name: when it was recorded in ms, a space, JSON; without workers that report none
# ARGV     name, ms after which a worker is offline, ms until the keys expire, details, activity or '', 1 if it is full
# Returns  nothing
#
# A script, because it needs the clock of Redis. Atomic, so that the keys agree. Idempotent. With allow-oom,
# because workers that drain a full server are online.
RECORD = Script("""#!lua flags=allow-oom
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local is_known = redis.call('ZADD', KEYS[1], ms, ARGV[1]) == 0
if is_known and ARGV[6] == '0' then
    return
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ms - ARGV[2])) do
    redis.call('HDEL', KEYS[2], gone)
    redis.call('HDEL', KEYS[3], gone)
    redis.call('ZREM', KEYS[1], gone)
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
if ARGV[5] ~= '' then
    redis.call('HSET', KEYS[3], ARGV[1], ms .. ' ' .. ARGV[5])
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[3]) end
""")


class RunningTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that runs, or a batch of tasks of one kind that run together."""

    task: str
    """The name of the Celery task."""
    id: str
    """Of the task; of a batch, that of one of its tasks."""
    item: str | None = None
    """The id of its item; `None` for a batch, and for tasks that have none."""
    tasks: int = 1
    elapsed_ms: int
    """Since it began."""


class PoolProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the pool. For pools of threads it is the worker's own, and executes several tasks."""

    pid: int
    memory_bytes: int | None = None
    """Resident memory; `None` if the operating system does not show it."""
    running: list[RunningTask] = []


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker does at the time of a heartbeat."""

    pool: str
    """Celery's name of the kind of pool, such as `prefork`."""
    size: int
    """How many tasks, or batches, run at the same time at most."""
    busy: int
    """How many run."""
    done_per_minute: int
    """Tasks that ended in the last minute, those that failed included."""
    memory_bytes: int | None = None
    """Resident memory of the main process."""
    processes: list[PoolProcess] = []

    def differs(self, recorded: Activity) -> bool:
        """Return True if this is worth recording at once: a task ended that was recorded, or runs for a while.

        Short tasks, memory, and small changes of the rate are not: an idle worker executes a short scan every second.
        """
        running = {task.id: task for process in self.processes for task in process.running}
        shown = {task.id for process in recorded.processes for task in process.running}
        long = {id for id, task in running.items() if task.elapsed_ms >= SHORT_TASK_MS}
        return (
            bool(shown - running.keys() or long - shown)
            or (self.pool, self.size) != (recorded.pool, recorded.size)
            or _has_changed(self.done_per_minute, recorded.done_per_minute)
        )


def _has_changed(rate: int, other: int) -> bool:
    return abs(rate - other) > RATE_CHANGE * max(rate, other)


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What rarely changes about a worker."""

    queues: list[str] | None = None
    release: str | None = None
    paused: str | None = None
    database: str | None = None
    """The hosts of MongoDB and the name of the database."""
    broker: str | None = None
    """The hosts of the broker and its database or virtual host; `None` at a Unix socket."""


@dataclass(frozen=True, kw_only=True)
class OnlineWorker:
    """A worker that is online."""

    name: Annotated[str, Field(description="Celery's node name.")]
    pid: Annotated[int, Field(description="Its main process.")]
    seen_at: Annotated[Moment, Field(description="Its last heartbeat.")]
    queues: Annotated[tuple[str, ...] | None, Field(description="The queues that it consumes; null if unknown.")]
    release: Annotated[str | None, Field(description="Its release; null before 0.2.")]
    paused: Annotated[str | None, Field(description="Why it takes no items; null if it does.")]

    def with_queues(self, queues: Set[str]) -> Self:
        """Return the worker without what it consumes besides these queues."""
        return replace(self, queues=self.queues and tuple(queue for queue in self.queues if queue in queues))


@dataclass(frozen=True, kw_only=True)
class ActiveWorker:
    """A worker and what it did at its last heartbeat that changed something, or that was full."""

    worker: OnlineWorker
    activity: Activity | None
    """`None` if it reports none."""
    activity_at: datetime | None


class _Recorder:
    """Records the heartbeats of this process."""

    def __init__(self) -> None:
        url = settings().redis_url
        self._client = make_client(url, socket_timeout=HEARTBEAT_TIMEOUT, socket_connect_timeout=HEARTBEAT_TIMEOUT)
        self._recorded: dict[str, tuple[float, Details, Activity | None]] = {}  # by the last full heartbeat

    def record(self, member: str, details: Details, activity: Activity | None) -> None:
        is_full, now = self._is_full(member, details, activity), time.monotonic()
        report = b"" if activity is None else msgspec.json.encode(activity)
        times = [milliseconds(OFFLINE_AFTER), milliseconds(RETENTION)]
        RECORD(self._client, KEYS, [member, *times, msgspec.json.encode(details), report, int(is_full)])
        if is_full:
            self._recorded[member] = now, details, activity

    def _is_full(self, member: str, details: Details, activity: Activity | None) -> bool:
        """Return True if there is something to record besides the time, or that was long ago."""
        if member not in self._recorded:
            return True
        at, known, shown = self._recorded[member]
        is_new = activity is not None and (shown is None or activity.differs(shown))
        return is_new or details != known or time.monotonic() >= at + FULL_INTERVAL

    def remove(self, member: str) -> None:
        self._recorded.pop(member, None)
        with self._client.pipeline(transaction=False) as pipe:  # a full server refuses transactions
            pipe.zrem(WORKERS_KEY, member)
            pipe.hdel(DETAILS_KEY, member)
            pipe.hdel(ACTIVITY_KEY, member)
            pipe.execute()


KEYS = [WORKERS_KEY, DETAILS_KEY, ACTIVITY_KEY]
_recorder = PerProcess(_Recorder)


def record(
    name: str, queues: Iterable[str] | None = None, *, paused: str | None = None, activity: Activity | None = None
) -> None:
    """Record a heartbeat of the worker `name` of this process, which consumes `queues`. Best effort.

    Args:
        paused: why it takes no items.
    """
    own_queues = None if queues is None else sorted(queues)
    servers = {"database": own_database(), "broker": own_broker()}
    details = Details(queues=own_queues, release=OWN_RELEASE, paused=paused, **servers)
    with suppress(redis.RedisError):
        _recorder().record(_member(name), details, activity)


def remove(name: str) -> None:
    """Remove a worker on shutdown. Best effort: otherwise it expires after `OFFLINE_AFTER`."""
    with suppress(redis.RedisError):
        _recorder().remove(_member(name))


def online(client: redis.Redis) -> list[OnlineWorker]:
    """Return the online workers by name; `client` must decode its replies. Raises the errors of redis-py."""
    with client.pipeline(transaction=False) as pipe:
        _read_workers(pipe)
        return list(_online(*pipe.execute()).values())


def active(client: redis.Redis) -> list[ActiveWorker]:
    """Return the online workers with what they do, by name. Like `online`."""
    with client.pipeline(transaction=False) as pipe:
        _read_workers(pipe)
        pipe.hgetall(ACTIVITY_KEY)
        *replies, activity = pipe.execute()
    return [_active(worker, activity.get(member)) for member, worker in _online(*replies).items()]


def own_database() -> str:
    """Return the hosts of MongoDB and the name of the database of this process, without credentials and options."""
    return _place(settings().mongo_db_url)


def own_broker() -> str | None:
    """Return the hosts of the broker and its database of this process, like `own_database`; `None` at a Unix socket."""
    hosts, _, name = _place(settings().broker).partition("/")
    return f"{hosts}/{name or 0}" if hosts else None


def _place(url: str) -> str:
    _, _, place = redact_url(url).partition("?")[0].partition("://")
    return place.rpartition("@")[2]


def online_details(client: redis.Redis) -> list[tuple[str, Details]]:
    """Return the names and details of the online workers. Like `online`."""
    with client.pipeline(transaction=False) as pipe:
        _read_workers(pipe)
        time_, found, details = pipe.execute()
    return [(one.name, _details(details.get(member))) for member, one in _online(time_, found, details).items()]


def is_same_database(one: str | None, other: str | None) -> bool:
    """Return True if two databases, as `own_database` describes them, have the same name and a host in common.

    Processes may list the members of a replica set in any order, and not all of them. Also True if one is unknown.
    """
    if not one or not other:
        return True
    (hosts, _, name), (other_hosts, _, other_name) = one.partition("/"), other.partition("/")
    return name == other_name and not _hosts(hosts).isdisjoint(_hosts(other_hosts))


def _hosts(listed: str) -> set[str]:
    return {_DEFAULT_PORT.sub("", host) for host in listed.lower().split(",")}


def unconsumed(workers: Iterable[OnlineWorker], queues: Iterable[str]) -> list[str]:
    """Return those of `queues` that no worker consumes; empty if the queues of a worker are unknown."""
    consumed: set[str] = set()
    for worker in workers:
        if worker.queues is None:
            return []
        consumed.update(worker.queues)
    return [queue for queue in queues if queue not in consumed]


def _member(name: str) -> str:
    return f"{name} {os.getpid()}"  # Celery allows two workers with the same name


def _read_workers(pipe: redis.client.Pipeline) -> None:
    pipe.time()
    pipe.zrange(WORKERS_KEY, 0, -1, withscores=True)
    pipe.hgetall(DETAILS_KEY)


def _online(
    time_: tuple[int, int], found: Iterable[tuple[str, float]], details: Mapping[str, str]
) -> dict[str, OnlineWorker]:
    """Return the online workers by member, in the order of their names."""
    since = unix_ms(time_of(time_)) - milliseconds(OFFLINE_AFTER)
    workers = {member: _worker(member, ms, details.get(member)) for member, ms in found if ms > since}
    return dict(sorted(workers.items(), key=lambda one: (one[1].name, one[1].pid)))


def _worker(member: str, ms: float, details: str | None) -> OnlineWorker:
    name, _, pid = member.rpartition(" ")
    found = _details(details)
    return OnlineWorker(
        name=name,
        pid=int(pid),
        seen_at=from_unix_ms(ms),
        queues=None if found.queues is None else tuple(found.queues),
        release=found.release,
        paused=found.paused,
    )


def _details(recorded: str | None) -> Details:
    return Details() if recorded is None else _decode_details(recorded)


def _active(worker: OnlineWorker, recorded: str | None) -> ActiveWorker:
    """Return a worker with its activity; without it, if a worker of another release reports it in another form."""
    ms, _, report = (recorded or "").partition(" ")
    try:
        return ActiveWorker(worker=worker, activity=_decode_activity(report), activity_at=from_unix_ms(int(ms)))
    except (ValueError, msgspec.DecodeError):
        return ActiveWorker(worker=worker, activity=None, activity_at=None)


_decode_details = msgspec.json.Decoder(Details).decode
_decode_activity = msgspec.json.Decoder(Activity).decode
