"""The commands that are sent to Redis, and which of them a user may not run.

Guarantee: finding that out changes nothing. The commands are queued in a transaction, which checks the rights of the
user, and the transaction is discarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import redis
from redis.exceptions import NoPermissionError

PROBE_KEY = "qm:doctor"
"""Stands for the key in the arguments of a command."""
COMMANDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("INFO", "PING", "TIME"), ()),
    "CLIENT TRACKING": ("ON",),
    **dict.fromkeys(("EVAL", "EVALSHA"), ("return 1", "1", PROBE_KEY)),
    # Any key
    **dict.fromkeys(("DEL", "EXISTS", "PTTL", "TYPE", "GET", "INCR"), (PROBE_KEY,)),
    **dict.fromkeys(("EXPIRE", "PEXPIRE", "INCRBY", "SET"), (PROBE_KEY, "1")),
    "RENAME": (PROBE_KEY, PROBE_KEY),
    # Hashes
    **dict.fromkeys(("HGETALL", "HLEN"), (PROBE_KEY,)),
    **dict.fromkeys(("HDEL", "HEXISTS", "HGET", "HMGET", "HSCAN"), (PROBE_KEY, "0")),
    **dict.fromkeys(("HINCRBY", "HSET"), (PROBE_KEY, "field", "1")),
    # Lists
    "LLEN": (PROBE_KEY,),
    **dict.fromkeys(("LPUSH", "RPUSH"), (PROBE_KEY, "value")),
    **dict.fromkeys(("LRANGE", "LREM", "LTRIM"), (PROBE_KEY, "0", "-1")),
    # Sets and sorted sets
    "SMEMBERS": (PROBE_KEY,),
    **dict.fromkeys(("SADD", "SREM", "ZREM", "ZSCORE", "ZMSCORE", "ZSCAN"), (PROBE_KEY, "0")),
    **dict.fromkeys(("ZCARD", "ZPOPMIN"), (PROBE_KEY,)),
    "ZADD": (PROBE_KEY, "1", "member"),
    **dict.fromkeys(("ZCOUNT", "ZRANGE", "ZRANGEBYSCORE", "ZREMRANGEBYSCORE"), (PROBE_KEY, "0", "1")),
    # Streams
    "XADD": (PROBE_KEY, "*", "field", "value"),
    "XLEN": (PROBE_KEY,),
    "XDEL": (PROBE_KEY, "0-1"),
    "XRANGE": (PROBE_KEY, "-", "+"),
    "XREVRANGE": (PROBE_KEY, "+", "-"),
    "XREAD": ("STREAMS", PROBE_KEY, "0"),
    "XTRIM": (PROBE_KEY, "MAXLEN", "1"),
    "XACK": (PROBE_KEY, "group", "0-1"),
    "XPENDING": (PROBE_KEY, "group"),
    "XREADGROUP": ("GROUP", "group", "consumer", "STREAMS", PROBE_KEY, ">"),
    "XCLAIM": (PROBE_KEY, "group", "consumer", "0", "0-1"),
    "XGROUP": ("CREATE", PROBE_KEY, "group", "0"),
    "XINFO": ("STREAM", PROBE_KEY),
}


def refused(client: redis.Redis, probes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of the commands that this user may not run. Raises the errors of redis-py."""
    pool: Any = client.connection_pool
    connection = pool.get_connection()
    try:
        _reply(connection, ("MULTI",))
        return [name for name, command in probes.items() if _is_refused(connection, command)]
    finally:
        connection.disconnect()  # discards the transaction
        pool.release(connection)


def _is_refused(connection: Any, command: Sequence[str]) -> bool:
    try:
        _reply(connection, command)
    except NoPermissionError:
        return True
    return False


def _reply(connection: Any, command: Sequence[str]) -> Any:
    connection.send_command(*command)
    return connection.read_response()
