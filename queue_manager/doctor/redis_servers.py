"""Checks of each Redis beyond those of health: rights, persistence, memory, the server of the message queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import redis
from redis.exceptions import NoPermissionError

from beat_schedule import systems
from queue_manager.broker.keys import DEFAULT_QUEUE
from queue_manager.core.errors import ConfigurationError, reason
from queue_manager.core.redis_client import REDIS_OUTAGES, connect, outage
from queue_manager.core.server_check import require_server
from queue_manager.core.settings import redact_url, settings
from queue_manager.core.wording import many
from queue_manager.doctor import redis_keys
from queue_manager.doctor.findings import Finding, Findings, NotChecked
from queue_manager.health_rules import Rule
from queue_manager.system import SCANS_QUEUE, item_queues
from services import message_queue

FULL_MEMORY = 0.9  # of maxmemory
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
    **dict.fromkeys(("SADD", "SREM", "SISMEMBER", "ZRANK", "ZREM", "ZSCORE", "ZMSCORE", "ZSCAN"), (PROBE_KEY, "0")),
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
STOCK_COMMANDS: Mapping[str, tuple[str, ...]] = {"BRPOP": (PROBE_KEY, "0"), "RPOP": (PROBE_KEY,)}
"""Commands that only kombu's transport uses."""
STOCK_BINDINGS = f"_kombu.binding.{DEFAULT_QUEUE}"
"""A key of kombu's transport, which cannot be configured to add a prefix to its keys."""


def urls() -> list[str]:
    """Return the URL of each Redis: the main one, the broker's and the message queue's."""
    chosen = settings()
    found = [chosen.redis_url, chosen.broker_redis_url]
    if chosen.qm_message_queue:
        found.append(message_queue.server_url())
    return list(dict.fromkeys(url for url in found if url is not None))


def of_message_queue() -> Iterator[Findings]:
    """Yield what is wrong with the server of the message queue, if it has one of its own."""
    url = message_queue.server_url()
    if not settings().qm_message_queue or url in (settings().redis_url, settings().broker_redis_url):
        return
    try:
        require_server(url)
    except ConfigurationError as error:
        yield Finding(str(error), Rule.SERVER_UNSUITABLE.action)
    except REDIS_OUTAGES as error:
        text = f"Redis at {redact_url(url)}, which QM_QUEUE_REDIS_URL names, {outage(error)}"
        yield Finding(text, Rule.SERVER_AWAY.action)


def permissions() -> Iterator[Findings]:
    """Yield the commands, keys and channels that the user of each Redis may not use."""
    return _on_each(urls(), _permissions)


def _permissions(client: redis.Redis, url: str) -> Iterator[Finding]:
    if missing := refused(client, _probes(url)):
        yield Finding(
            f"The user of Redis at {redact_url(url)} may not use {', '.join(missing)}",
            "Grant it these with ACL SETUSER, and in the file of the ACL users.",
        )


def _probes(url: str) -> dict[str, tuple[str, ...]]:
    """Return commands, by their names or the keys and channels that they use, which the user of this Redis needs."""
    chosen = settings()
    keys = [f"{chosen.queue_name}{ending}" for ending in ("", "_metadata", ":deadlines")]
    probe_key = f"{chosen.queue_name}_doctor"
    channels = [f"{chosen.queue_name}_events"] if chosen.qm_message_queue and url == message_queue.server_url() else []
    if url in (chosen.redis_url, chosen.broker_redis_url):
        keys = [SCANS_QUEUE, DEFAULT_QUEUE, *item_queues(systems()), *(keys if chosen.qm_message_queue else [])]
        channels, probe_key = [chosen.socketio_channel, *channels], PROBE_KEY
    commands = [*COMMANDS.items()]
    if chosen.qm_broker == "stock" and url == chosen.broker_redis_url:
        commands += STOCK_COMMANDS.items()
        keys.append(STOCK_BINDINGS)
    return {
        **{name: (*name.split(), *(probe_key if one == PROBE_KEY else one for one in of)) for name, of in commands},
        **{f"the key {key}": ("EXISTS", key) for key in keys},
        **{f"the channel {channel}": ("PUBLISH", channel, "") for channel in channels},
    }


def key_types() -> Iterator[Findings]:
    """Yield the keys that another program wrote with another type."""
    types = redis_keys.types()
    return _on_each(types, lambda client, url: _key_types(client, url, types[url]))


def _key_types(client: redis.Redis, url: str, types: Mapping[str, str]) -> Iterator[Finding]:
    for text in redis_keys.of_other_types(client, types):
        yield Finding(
            f"In Redis at {redact_url(url)}, the key {text}",
            "Another program wrote it: rename or delete the key, and give that program a database of its own.",
        )


def persistence() -> Iterator[Findings]:
    """Yield what each Redis would lose in a crash, and a memory that is nearly full."""
    return _on_each(urls(), _persistence)


def _persistence(client: redis.Redis, url: str) -> Iterator[Finding]:
    info: Mapping[str, Any] = client.info()
    url = redact_url(url)
    if not info["aof_enabled"] and not info["connected_slaves"]:
        yield Finding(
            f"Redis at {url} writes no append-only file and has no replica: a crash loses the messages in its queues",
            "Set appendonly yes with CONFIG SET and in its configuration, or add a replica.",
        )
    if info["aof_enabled"] and info["aof_last_write_status"] != "ok":
        yield Finding(
            f"Redis at {url} cannot write its append-only file", "See its log; its disk may be full or read-only."
        )
    used, limit = info["used_memory"], info["maxmemory"]
    if limit and used > FULL_MEMORY * limit:
        yield Finding(
            f"Redis at {url} uses {100 * used // limit} % of its maxmemory, and will refuse writes when it is full",
            "Raise maxmemory, or remove what other programs keep there.",
        )


def left_messages() -> Iterator[Findings]:
    """Yield the messages that were left on another Redis when the message queue got a server of its own."""
    chosen, url = settings(), message_queue.server_url()
    others = [one for one in dict.fromkeys((chosen.redis_url, chosen.broker_redis_url)) if one is not None]
    if chosen.qm_message_queue and url not in others:
        yield from _on_each([url], lambda client, _: _on_each(others, partial(_left_messages, own=_database(client))))


def _left_messages(client: redis.Redis, url: str, own: tuple[str, int]) -> Iterator[Finding]:
    name = settings().queue_name.strip("{}")  # on a cluster it is in braces, and was perhaps not before
    if _database(client) == own or not (count := client.hlen(f"{name}_metadata")):
        return
    yield Finding(
        f"{many(count, 'message')} of the message queue stayed in Redis at {redact_url(url)}, where nothing receives "
        f"them: QM_QUEUE_REDIS_URL names {redact_url(message_queue.server_url())}",
        "With the old settings, run `queue-manager queue export` for `processing`, `main` and `dead`; with the new "
        "ones `queue-manager queue import`; then `queue-manager queue clear --all` with the old ones.",
    )


def _database(client: redis.Redis) -> tuple[str, int]:
    """Return what all URLs of one database have in common: the run of the server, and the number."""
    info: Mapping[str, Any] = client.info("server")
    return info["run_id"], client.get_connection_kwargs().get("db", 0)


def _on_each(urls: Iterable[str], check: Callable[[redis.Redis, str], Iterator[Findings]]) -> Iterator[Findings]:
    """Check each Redis; yield what is wrong, and why one could not be read."""
    for url in urls:
        try:
            with connect(url) as client:
                yield from check(client, url)
        except redis.RedisError as error:
            yield NotChecked(f"Redis at {redact_url(url)}: {reason(error)}")


def refused(client: redis.Redis, probes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of the commands that this user may not run. Raises the errors of redis-py.

    Guarantee: it changes nothing. The commands are queued in a transaction, which checks the rights of the user, and
    the transaction is discarded.
    """
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
