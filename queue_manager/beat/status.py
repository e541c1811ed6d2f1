"""State of the schedule, as the leading beat records it in Redis: the leader, and the next run of each entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kombu.utils.encoding import bytes_to_str
from redis import Redis

from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.broker.keys import SCHEDULE_PREFIX
from queue_manager.core.clock import from_unix_ms, seconds

SCHEDULE_KEY = f"{SCHEDULE_PREFIX}:schedule"
"""RedBeat's sorted set of entry keys by their next run in Unix seconds."""
OLD_LEADER_LOCK = "redbeat::lock"
"""Key of the leader lock of release 0.1, which RedBeat's own lock has too."""


@dataclass(frozen=True, kw_only=True)
class Leadership:
    """The leader and the remaining time of its lease."""

    host: str
    pid: int
    since: datetime
    epoch: int
    lease_left: timedelta


def leadership(client: Redis, lock_key: str = LEADER_LOCK) -> Leadership | None:
    """Return the holder of the lock `lock_key`, or `None` if it is free."""
    with client.pipeline(transaction=False) as pipe:  # in a transaction, a full server refuses reads, too
        pipe.hgetall(lock_key)
        pipe.pttl(lock_key)
        fields, left_ms = pipe.execute()
    if not fields:
        return None
    lock = {bytes_to_str(name): bytes_to_str(value) for name, value in fields.items()}  # decoded or not by the client
    return Leadership(
        host=lock["host"],
        pid=int(lock["pid"]),
        since=from_unix_ms(int(lock["since_ms"])),
        epoch=int(lock["epoch"]),
        lease_left=seconds(max(left_ms, 0) / 1000),
    )


def older_leader(client: Redis) -> str | None:
    """Return the leading beat of release 0.1 as `host:pid`. RedBeat's own lock, which is not a hash, is ignored."""
    if client.type(OLD_LEADER_LOCK) not in ("hash", b"hash"):
        return None
    holder = leadership(client, OLD_LEADER_LOCK)
    return f"{holder.host}:{holder.pid}" if holder else None


def next_runs(client: Redis, names: Sequence[str]) -> dict[str, datetime]:
    """Return the next runs of those of `names` that are in the schedule. Raises the errors of redis-py."""
    scores = client.zmscore(SCHEDULE_KEY, [f"{SCHEDULE_PREFIX}{name}" for name in names])
    return {
        name: from_unix_ms(float(score) * 1000)
        for name, score in zip(names, scores, strict=True)
        if score is not None and float(score) >= 0  # negative if it has ended
    }
