"""Items that started and never ended: each may be what killed or hung its process.

An item is recorded when it starts and removed when it ends, however it ends; a record that stays belongs to a process
that died. From then on the item is executed alone. A start that finds such a record counts as a loss.

Guarantee: an item that never started is never suspected, even if its message was lost or redelivered. Recording is best
effort: while Redis is away items start unrecorded, and no item fails because of it. Executions of one item that overlap
count as losses of it, which costs it a pause at most: its lease keeps them rare.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import redis

from queue_manager.core.clock import hours, minutes
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.per_process import PerProcess
from queue_manager.core.retry import doubling
from queue_manager.core.settings import settings
from queue_manager.transport.scripts import Script
from queue_manager.transport.server import make_client

FIRST_PAUSE, MAX_PAUSE = minutes(1), hours(1)
OFTEN = 3  # losses in a row after which health names the item
RETENTION_SECONDS = 86_400
REDIS_TIMEOUT = 0.5  # seconds that a start waits for a Redis that hangs
RETRY_DELAY = 5.0  # seconds without recording after Redis failed

Args = Sequence[Any]

log = get_logger("QM/losses")

# Record the start of a batch, except of items that are to be executed alone.
#
# KEYS     started: sorted set of item → when it started; losses: hash of item → losses in a row, ":", when it was last
# ARGV     items
# Returns  positions in ARGV, from 1, of the items to be executed alone
#
# Atomic because two processes may start the same item at once. With allow-oom: a full server must still be emptied.
START_BATCH = Script("""#!lua flags=allow-oom
local started = redis.call('ZMSCORE', KEYS[1], unpack(ARGV))
local losses = redis.call('EXISTS', KEYS[2]) == 1 and redis.call('HMGET', KEYS[2], unpack(ARGV)) or {}
local now = redis.call('TIME')[1]
local suspects, fresh = {}, {}
for i, item in ipairs(ARGV) do
    if started[i] or losses[i] then
        suspects[#suspects + 1] = i
    else
        fresh[#fresh + 1], fresh[#fresh + 2] = now, item
    end
end
if #fresh > 0 then
    redis.call('ZADD', KEYS[1], unpack(fresh))
end
return suspects
""")

# Record the start of one item; the start before it that never ended counts as a loss.
#
# KEYS     started, losses
# ARGV     item, losses from which on it must pause first, seconds to keep losses
# Returns  losses in a row if it must pause first, else 0
#
# Atomic for the reason of START_BATCH. A pause removes the record: the start after it is not a loss.
START_ALONE = Script("""#!lua flags=allow-oom
local now = tonumber(redis.call('TIME')[1])
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then
    local all = redis.call('HGETALL', KEYS[2])
    local losses = 1
    for i = 1, #all, 2 do
        local count, at = string.match(all[i + 1], '^(%d+):(%d+)$')
        if not at or now - at > tonumber(ARGV[3]) then
            redis.call('HDEL', KEYS[2], all[i])
        elseif all[i] == ARGV[1] then
            losses = count + 1
        end
    end
    redis.call('HSET', KEYS[2], ARGV[1], string.format('%d:%d', losses, now))
    redis.call('EXPIRE', KEYS[2], ARGV[3])
    if losses >= tonumber(ARGV[2]) then
        redis.call('ZREM', KEYS[1], ARGV[1])
        return losses
    end
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
return 0
""")

# Remove the records of items that ended, and those that are too old to mean anything.
#
# KEYS     started, losses
# ARGV     seconds to keep a record, then items
END = Script("""#!lua flags=allow-oom
redis.call('ZREM', KEYS[1], unpack(ARGV, 2))
redis.call('HDEL', KEYS[2], unpack(ARGV, 2))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', redis.call('TIME')[1] - ARGV[1])
""")


class MustPause(Exception):
    """The item lost its process too often in a row to start now."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.pause: timedelta = doubling(FIRST_PAUSE, losses - 2, cap=MAX_PAUSE)
        super().__init__(f"its process was lost {losses} times in a row; it pauses {self.pause.total_seconds():.0f} s")


@contextmanager
def batch(queue: str, items: Sequence[Args]) -> Iterator[set[int]]:
    """Record that a batch runs within; yield the positions of the items that must be executed alone instead."""
    names = [_name(args) for args in items]
    suspects = {position - 1 for position in _recorder().run(START_BATCH, queue, *names) or ()} if names else set()
    with _ending(queue, [name for position, name in enumerate(names) if position not in suspects]):
        yield suspects


@contextmanager
def alone(queue: str, args: Args) -> Iterator[None]:
    """Record that one item runs within. Raises MustPause."""
    name = _name(args)
    losses = _recorder().run(START_ALONE, queue, name, 2, RETENTION_SECONDS) or 0
    if losses:
        raise MustPause(losses)
    with _ending(queue, [name]):
        yield


@contextmanager
def _ending(queue: str, names: Sequence[str]) -> Iterator[None]:
    def end() -> None:
        if names:
            _recorder().run(END, queue, RETENTION_SECONDS, *names)

    try:
        yield
    except Exception:
        end()
        raise
    # Not for SystemExit and the like: an item that ends its process is lost.
    end()


def often(client: redis.Redis, queue: str) -> Mapping[str, int]:
    """Return the losses in a row of each item that has `OFTEN` or more in a day, by its arguments but the due time.

    Raises what redis-py raises. `client` decodes its replies.
    """
    now = int(client.time()[0])
    found = {}
    for name, value in client.hgetall(_keys(queue)[1]).items():
        count, at = map(int, str(value).split(":"))
        if count >= OFTEN and now - at <= RETENTION_SECONDS:
            found[_shown(str(name))] = count
    return found


def _shown(name: str) -> str:
    args = json.loads(name)
    return " ".join(str(one) for one in args[:-1] if isinstance(one, str)) or str(args[0])


def _name(args: Args) -> str:
    return json.dumps(args)


def _keys(queue: str) -> list[str]:
    return [f"qm:started:{queue}", f"qm:losses:{queue}"]


class _Recorder:
    """This process's way to the records."""

    def __init__(self, url: str) -> None:
        self._client = make_client(url, socket_timeout=REDIS_TIMEOUT, socket_connect_timeout=REDIS_TIMEOUT)
        self._retry_at = 0.0

    def run(self, script: Script, queue: str, *arguments: Any) -> Any:
        """Run a script of this module; `None` if Redis is away."""
        if time.monotonic() < self._retry_at:
            return None
        try:
            return script(self._client, _keys(queue), arguments)
        except redis.RedisError as error:
            self._retry_at = time.monotonic() + RETRY_DELAY
            log.warning("Starts of items are not recorded for now", queue=queue, error=reason(error))
            return None


_recorder = PerProcess(lambda: _Recorder(settings().redis_url))
