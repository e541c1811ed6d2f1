"""Empties the keys that release 0.1 shared with other Celery applications, of messages for our tasks only.

- The queue `celery`: messages of 0.1 and of callers that name no queue go to the queue of their task.
- The hash `unacked`: what a worker of 0.1 held and no longer renews goes back to its queue.

Messages for other tasks stay where they are. Workers of both releases may run at the same time. One release later
this module can go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial

from redis import Redis

from queue_manager.broker import keys
from queue_manager.core.redis_client import Script

PAGE = 50  # messages that one call of a script looks at
MAX_PAGES = 20  # in one run
OVERDUE_AFTER = 30  # seconds: the visibility timeout of release 0.1, whose workers renew every quarter of it

# Move messages of certain tasks from one list to the lists of their queues, the oldest first.
#
# KEYS     the list
# ARGV     JSON object of queues by the names of their tasks, what follows the name of a queue for this priority, oldest
#          messages to leave out, most to look at
# Returns  how many it looked at, how many it moved
#
# Atomic because a message must be in one place while other applications take from the list.
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
        redis.call('LREM', KEYS[1], -1, messages[i])
        redis.call('LPUSH', queue .. ARGV[2], messages[i])
        moved = moved + 1
    end
end
return {#messages, moved}
""")

# Put back overdue messages that workers of release 0.1 held, to be delivered next.
#
# KEYS     unacked, unacked_index
# ARGV     JSON object of queues by the names of their tasks, the default queue of other applications, what stands
#          between a queue's name and its priority, seconds after which a message is overdue, overdue ones to leave
#          out, most to look at
# Returns  how many it looked at, how many it put back
#
# Atomic for the same reason. A tag of release 0.1 is 32 hexadecimal digits, two numbers and a priority; those of stock
# kombu are left alone.
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


class OldKeys:
    """Looks through the old keys, a part at a time. The next run goes on where the last one stopped."""

    def __init__(self, queues: Mapping[str, str]) -> None:
        """Take the queues by the names of their tasks."""
        self._queues = json.dumps(dict(queues))
        self._positions: dict[str, int] = {}

    def empty(self, client: Redis) -> int:
        """Move what is ours; return how many messages. Raises what redis-py raises."""
        moved = self._in_pages(keys.OLD_UNACKED, partial(self._restore, client))
        for priority in keys.PRIORITIES:
            name = keys.list_of(keys.FOREIGN_DEFAULT_QUEUE, priority)
            moved += self._in_pages(name, partial(self._move, client, name))
        return moved

    def _in_pages(self, name: str, look: Callable[[int], tuple[int, int]]) -> int:
        position, all_moved = self._positions.get(name, 0), 0
        for _ in range(MAX_PAGES):
            seen, moved = look(position)
            all_moved += moved
            position += seen - moved
            if seen < PAGE:
                position = 0
                break
        self._positions[name] = position
        return all_moved

    def _move(self, client: Redis, name: str, first: int) -> tuple[int, int]:
        suffix = name.removeprefix(keys.FOREIGN_DEFAULT_QUEUE)
        seen, moved = MOVE_TASKS(client, [name], [self._queues, suffix, first, PAGE])
        return int(seen), int(moved)

    def _restore(self, client: Redis, first: int) -> tuple[int, int]:
        names = [self._queues, keys.FOREIGN_DEFAULT_QUEUE, keys.SEPARATOR]
        held_in = [keys.OLD_UNACKED, keys.OLD_UNACKED_INDEX]
        seen, restored = RESTORE_OLD(client, held_in, [*names, OVERDUE_AFTER, first, PAGE])
        return int(seen), int(restored)
