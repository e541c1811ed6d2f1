"""Next run of each schedule entry, as recorded by the leading beat."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import redis

from queue_manager.broker.keys import SCHEDULE_PREFIX

SCHEDULE = f"{SCHEDULE_PREFIX}:schedule"
"""RedBeat's sorted set of entry keys by their next run in Unix seconds."""


def next_runs(client: redis.Redis, names: Sequence[str]) -> dict[str, datetime]:
    """Return the next runs of those of `names` that are in the schedule. Raises the errors of redis-py."""
    scores = client.zmscore(SCHEDULE, [f"{SCHEDULE_PREFIX}{name}" for name in names])
    return {
        name: datetime.fromtimestamp(float(score), UTC)
        for name, score in zip(names, scores, strict=True)
        if score is not None and float(score) >= 0  # negative if it has ended
    }
