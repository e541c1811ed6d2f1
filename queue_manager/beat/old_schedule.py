"""Migration of schedule entries from the keys that release 0.1 shared with all applications that use RedBeat.

An entry is moved if our app has its task, and it was saved by a program or is in our configuration, not in another one.
Beats of both releases may run at the same time: while an older one leads, new ones stand by. To be removed after one
release.
"""

from __future__ import annotations

import json
from typing import Any

from redis.client import NEVER_DECODE

OLD_PREFIX = b"redbeat:"
OLD_SCHEDULE = "redbeat::schedule"
OLD_STATICS = "redbeat::statics"
ENTRIES_PER_READ = 500

# Moves an entry. One that was configured, but not by us, stays: another beat with the old keys runs it.
#
# KEYS     old entry, schedule and statics; new entry and schedule
# ARGV     name of the entry; 1 if our configuration has it
# Returns  1 if it was moved, 0 if it stays or does not exist
#
# Atomic, because a program may save or delete the entry meanwhile. An entry under both keys was saved last under the
# old one.
MOVE_ENTRY = """
local at = redis.call('ZSCORE', KEYS[2], KEYS[1])
if not at or redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
end
if redis.call('SISMEMBER', KEYS[3], ARGV[1]) == 1 and ARGV[2] ~= '1' then
    return 0
end
redis.call('RENAME', KEYS[1], KEYS[4])
redis.call('ZREM', KEYS[2], KEYS[1])
redis.call('ZADD', KEYS[5], at, KEYS[4])
redis.call('SREM', KEYS[3], ARGV[1])
return 1
"""


def move_entries(client: Any, app: Any) -> int:
    """Move our entries to the keys of `app`; return their number. Raises the errors of redis-py."""
    conf = app.redbeat_conf
    as_bytes: dict[str, Any] = {NEVER_DECODE: True}  # keys of other applications need not be UTF-8
    configured = {name.encode() for name in app.conf.beat_schedule}
    keys = client.execute_command("ZRANGE", OLD_SCHEDULE, 0, -1, **as_bytes)
    moved = 0
    for start in range(0, len(keys), ENTRIES_PER_READ):
        page = keys[start : start + ENTRIES_PER_READ]
        with client.pipeline(transaction=False) as pipe:
            for key in page:
                pipe.execute_command("HGET", key, "definition", **as_bytes)
            definitions = pipe.execute(raise_on_error=False)
        for key, definition in zip(page, definitions, strict=True):
            if key.startswith(OLD_PREFIX) and _is_ours(definition, app):
                name = key.removeprefix(OLD_PREFIX)
                new_key = conf.key_prefix.encode() + name
                names = (key, OLD_SCHEDULE, OLD_STATICS, new_key, conf.schedule_key)
                moved += int(client.eval(MOVE_ENTRY, len(names), *names, name, int(name in configured)))
    return moved


def _is_ours(definition: Any, app: Any) -> bool:
    """Return True if our app has the task of an entry. Celery's own tasks exist in every application."""
    try:
        task = json.loads(definition)["task"]
        return task in app.tasks and not task.startswith("celery.")
    except (TypeError, ValueError, LookupError, RecursionError):
        return False
