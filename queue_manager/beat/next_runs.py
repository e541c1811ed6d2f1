"""When each entry of the schedule runs next, as the beat that leads has noted it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import redis

from queue_manager.broker.keys import SCHEDULE_PREFIX

SCHEDULE = f"{SCHEDULE_PREFIX}:schedule"
"""RedBeat's sorted set of the keys of all entries by their next run, in seconds."""


def next_runs(client: redis.Redis, names: Sequence[str]) -> dict[str, datetime]:
    """Return the next runs of those of `names` that are in the schedule. Raises what redis-py raises."""
    scores = client.zmscore(SCHEDULE, [f"{SCHEDULE_PREFIX}{name}" for name in names])
    return {
        name: datetime.fromtimestamp(float(score), UTC)
        for name, score in zip(names, scores, strict=True)
        if score is not None and float(score) >= 0  # below: it runs no more
    }
