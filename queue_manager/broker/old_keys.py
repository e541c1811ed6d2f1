"""Migration of messages from the keys that release 0.1 shared with other Celery applications.

- The queue `celery`: messages of release 0.1, and of callers that name no queue, move to the queue of their task.
- The hash `unacked`: messages that a worker of release 0.1 held and no longer renews move back to their queue.

Messages for tasks of other applications are not touched. Workers of both releases may run at the same time. To be
removed after one release.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any

from redis import Redis

from queue_manager.broker import keys
from queue_manager.core.redis_client import Script

MESSAGES_PER_CALL = 50  # messages that one call of a script examines
MAX_SCRIPT_CALLS = 20  # per list and run
MAX_EXAMINED = 1_000  # messages of a key that are examined when they are only counted
OVERDUE_AFTER = 30  # seconds: the visibility timeout of release 0.1, whose workers renew every quarter of it
OLD_LISTS = [keys.list_of(keys.FOREIGN_DEFAULT_QUEUE, priority) for priority in keys.PRIORITIES]

# Moves messages of certain tasks from one list to the lists of their queues, oldest first.
#
# KEYS     the list
# ARGV     JSON object of queue by task name, suffix of the lists of this priority, number of oldest messages to skip,
#          maximum number of messages to examine
# Returns  number of messages examined, number of messages moved
#
# Atomic, because a message must be in one place while other applications take from the list. An error undoes nothing,
# so a message is added to its new list, which may be a key of another type, before it is removed.
MOVE_TASKS = Script("""#!lua flags=allow-oom
local queues = cjson.decode(ARGV[1])
local first, most = tonumber(ARGV[3]), tonumber(ARGV[4])
local messages = redis.call('LRANGE', KEYS[1], -first - most, -first - 1)
local moved = 0
for i = #messages, 1, -1 do
    local named = string.match(messages[i], '"task": ?"([^"]*)"')
    local is_json, message = false, nil
    if named and queues[named] then -- else it is not worth decoding
        is_json, message = pcall(cjson.decode, messages[i])
    end
    local headers = is_json and type(message) == 'table' and message.headers
    local queue = type(headers) == 'table' and type(headers.task) == 'string' and queues[headers.task]
    if queue then
        redis.call('LPUSH', queue .. ARGV[2], messages[i])
        redis.call('LREM', KEYS[1], -1, messages[i])
        moved = moved + 1
    end
end
return {#messages, moved}
""")

# Puts back overdue messages that workers of release 0.1 held, to be delivered next.
#
# KEYS     unacked, unacked_index
# ARGV     JSON object of queue by task name, default queue of other applications, separator between queue and priority,
#          seconds after which a message is overdue, number of overdue messages to skip, maximum number to examine
# Returns  number of messages examined, number of messages put back
#
# Atomic for the same reason. A tag of release 0.1 is 32 hexadecimal digits, two numbers and a priority; those of stock
# kombu are not touched.
RESTORE_OLD = Script("""#!lua flags=allow-oom
local queues = cjson.decode(ARGV[1])
local clock = redis.call('TIME')
local overdue = string.format('%.6f', clock[1] + clock[2] / 1000000 - tonumber(ARGV[4]))
local tags = redis.call('ZRANGE', KEYS[2], '-inf', overdue, 'BYSCORE', 'LIMIT', tonumber(ARGV[5]), tonumber(ARGV[6]))
local restored = 0
for i = #tags, 1, -1 do
    local id, priority = string.match(tags[i], '^(%x+)%-%d+%-%d%d%d%d@(%d+)$')
    local entry = id and #id == 32 and redis.call('HGET', KEYS[1], tags[i])
    local message, queue = string.match(entry or '', '^%[(.*), "", "([^"]*)"%]$')
    if message then
        queue = cjson.decode('["' .. queue .. '"]')[1]
        local is_json, decoded = pcall(cjson.decode, message)
        local headers = is_json and type(decoded) == 'table' and decoded.headers
        if queue == ARGV[2] and type(headers) == 'table' and type(headers.task) == 'string' then
            queue = queues[headers.task] or queue
        end
        redis.call('RPUSH', priority == '0' and queue or queue .. ARGV[3] .. priority, message)
        redis.call('ZREM', KEYS[2], tags[i])
        redis.call('HDEL', KEYS[1], tags[i])
        restored = restored + 1
    end
end
return {#tags, restored}
""")


def count(client: Redis, queue_by_task: Mapping[str, str]) -> int:
    """Count messages for our tasks in the old keys, among the oldest 1,000 of each list and 1,000 unacknowledged ones.

    `client` must not decode its replies, because messages of other applications need not be UTF-8.
    """
    messages = [message for name in OLD_LISTS for message in client.lrange(name, -MAX_EXAMINED, -1)]
    unacked = islice(client.hscan_iter(keys.OLD_UNACKED, count=MAX_EXAMINED), MAX_EXAMINED)
    decoded = [*map(_decoded, messages), *(_first(_decoded(entry)) for _, entry in unacked)]
    return sum(_task_of(message) in queue_by_task for message in decoded)


def _decoded(message: bytes | str) -> Any:
    try:
        return json.loads(message)
    except (ValueError, RecursionError):
        return None


def _first(entry: Any) -> Any:
    """Return the message of an unacknowledged one, which kombu keeps as [message, exchange, routing key]."""
    return entry[0] if isinstance(entry, list) and entry else None


def _task_of(message: Any) -> str | None:
    headers = message.get("headers") if isinstance(message, dict) else None
    task = headers.get("task") if isinstance(headers, dict) else None
    return task if isinstance(task, str) else None


class OldKeys:
    """Examines the old keys in parts: each run continues where the previous one stopped."""

    def __init__(self, queue_by_task: Mapping[str, str]) -> None:
        self._queue_by_task = json.dumps(dict(queue_by_task))
        self._positions: dict[str, int] = {}

    @staticmethod
    def exist(client: Redis) -> bool:
        """Return True if there is anything to examine. Raises the errors of redis-py."""
        return bool(client.exists(keys.OLD_UNACKED_INDEX, *OLD_LISTS))

    def empty(self, client: Redis) -> int:
        """Move our messages; return their number. Raises the errors of redis-py."""
        moved = self._in_parts(keys.OLD_UNACKED, partial(self._restore, client))
        for name in OLD_LISTS:
            moved += self._in_parts(name, partial(self._move, client, name))
        return moved

    def _in_parts(self, name: str, examine: Callable[[int], tuple[int, int]]) -> int:
        """Call `examine` with the number of messages to skip; return how many messages were moved."""
        position, all_moved = self._positions.get(name, 0), 0
        for _ in range(MAX_SCRIPT_CALLS):
            examined, moved = examine(position)
            all_moved += moved
            position += examined - moved
            if examined < MESSAGES_PER_CALL:
                position = 0
                break
        self._positions[name] = position
        return all_moved

    def _move(self, client: Redis, name: str, skipped: int) -> tuple[int, int]:
        suffix = name.removeprefix(keys.FOREIGN_DEFAULT_QUEUE)
        examined, moved = MOVE_TASKS(client, [name], [self._queue_by_task, suffix, skipped, MESSAGES_PER_CALL])
        return int(examined), int(moved)

    def _restore(self, client: Redis, skipped: int) -> tuple[int, int]:
        names = [self._queue_by_task, keys.FOREIGN_DEFAULT_QUEUE, keys.SEPARATOR]
        unacked_keys = [keys.OLD_UNACKED, keys.OLD_UNACKED_INDEX]
        examined, moved = RESTORE_OLD(client, unacked_keys, [*names, OVERDUE_AFTER, skipped, MESSAGES_PER_CALL])
        return int(examined), int(moved)
