"""Migration of schedule entries from the keys that release 0.1 shared with all applications that use RedBeat.

An entry is moved if our app has its task. Beats of both releases may run at the same time: while an older one leads,
new ones stand by. To be removed after one release.
"""

from __future__ import annotations

import json
from typing import Any

from redis import Redis
from redis.client import NEVER_DECODE

from queue_manager.beat.leader_lock import leadership

PREFIX = b"redbeat:"
SCHEDULE = "redbeat::schedule"
STATICS = "redbeat::statics"
LOCK = "redbeat::lock"
READ_BATCH_SIZE = 500  # entries

# Moves an entry, and its membership in the set of configured entries.
#
# KEYS     old entry, schedule and statics; new entry, schedule and statics
# ARGV     name of the entry
# Returns  1 if it was moved, 0 if it does not exist
#
# Atomic, because a program may save or delete the entry meanwhile. An entry under both keys was saved last under the
# old one.
MOVE = """
local at = redis.call('ZSCORE', KEYS[2], KEYS[1])
if not at or redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
end
redis.call('RENAME', KEYS[1], KEYS[4])
redis.call('ZREM', KEYS[2], KEYS[1])
redis.call('ZADD', KEYS[5], at, KEYS[4])
if redis.call('SREM', KEYS[3], ARGV[1]) == 1 then
    redis.call('SADD', KEYS[6], ARGV[1])
end
return 1
"""


def leader(client: Redis) -> str | None:
    """Return the leading beat of release 0.1 as `host:pid`. RedBeat's own lock, which is not a hash, is ignored."""
    if client.type(LOCK) not in ("hash", b"hash"):
        return None
    holder = leadership(client, LOCK)
    return f"{holder.host}:{holder.pid}" if holder else None


def move_entries(client: Any, app: Any) -> int:
    """Move our entries to the keys of `app`; return their number. Raises the errors of redis-py."""
    conf = app.redbeat_conf
    as_bytes: dict[str, Any] = {NEVER_DECODE: True}  # keys of other applications need not be UTF-8
    keys = client.execute_command("ZRANGE", SCHEDULE, 0, -1, **as_bytes)
    moved = 0
    for start in range(0, len(keys), READ_BATCH_SIZE):
        page = keys[start : start + READ_BATCH_SIZE]
        with client.pipeline(transaction=False) as pipe:
            for key in page:
                pipe.execute_command("HGET", key, "definition", **as_bytes)
            definitions = pipe.execute(raise_on_error=False)
        for key, definition in zip(page, definitions, strict=True):
            if key.startswith(PREFIX) and _is_ours(definition, app):
                name = key.removeprefix(PREFIX)
                new_key = conf.key_prefix.encode() + name
                names = (key, SCHEDULE, STATICS, new_key, conf.schedule_key, conf.statics_key)
                moved += int(client.eval(MOVE, len(names), *names, name))
    return moved


def _is_ours(definition: Any, app: Any) -> bool:
    """Return True if our app has the task of an entry. Celery's own tasks exist in every application."""
    try:
        task = json.loads(definition)["task"]
        return task in app.tasks and not task.startswith("celery.")
    except (TypeError, ValueError, LookupError, RecursionError):
        return False
