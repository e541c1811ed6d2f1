"""Numbered ticks of the beat and of triggers, so that a backlog of ticks results in one run of the scan.

Guarantee: a tick is skipped only if a run of the same entry began after the tick was sent. No clock is involved: Redis
numbers the ticks, and each run records the number of the last tick sent before it began.

Keys: `qm:scan-ticks:<entry>`, a hash {sent, covered} that expires within a week after the last tick. Numbers then begin
again at 1, with no run recorded, so that no tick is skipped.
"""

from __future__ import annotations

from typing import Any

import redis

from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.process import PerProcess
from queue_manager.core.redis_client import Script, make_client
from queue_manager.core.settings import settings

TICK_HEADER = "qm_tick"
"""Message header of a tick: {entry, number}."""
TICK_RETENTION = 7 * 24 * 3600  # seconds
TICKS_PER_EXPIRY = 16  # every so many ticks the expiry is set again
TICK_TIMEOUT = 0.5  # seconds that a scan waits for Redis

# Begins a run for a tick, unless a run began after the tick was sent. The run covers all ticks sent so far.
#
# KEYS[1]  ticks of the entry: hash {sent, covered}
# ARGV     number of the tick
# Returns  1 if the scan must run, 0 if the tick must be skipped
#
# Atomic, so that of two workers with ticks of the same backlog only one runs.
BEGIN_RUN = Script("""
local ticks = redis.call('HMGET', KEYS[1], 'sent', 'covered')
if tonumber(ARGV[1]) <= tonumber(ticks[2] or 0) then
    return 0
end
redis.call('HSET', KEYS[1], 'covered', ticks[1] or 0)
return 1
""")

log = get_logger("QM/tasks")
_client = PerProcess(
    lambda: make_client(settings().redis_url, socket_timeout=TICK_TIMEOUT, socket_connect_timeout=TICK_TIMEOUT)
)


def issue(client: redis.Redis, entry: str) -> dict[str, Any]:
    """Number a tick of `entry`; return the value of its header. Raises the errors of redis-py."""
    number = int(client.hincrby(_key(entry), "sent", 1))
    if number % TICKS_PER_EXPIRY == 1:
        client.expire(_key(entry), TICK_RETENTION)
    return {"entry": entry, "number": number}


def begin(tick: Any) -> bool:
    """Return True if the run that `tick` asks for must be done; `tick` is the header's value, None without one.

    If Redis does not answer, the scan runs, because an additional run is harmless.
    """
    match tick:
        case {"entry": str(entry), "number": int(number)}:
            pass
        case _:
            return True  # a manual run, or one of another program
    try:
        return bool(BEGIN_RUN(_client(), [_key(entry)], [number]))
    except redis.RedisError as error:
        log.warning("The tick could not be checked, so the scan runs", entry=entry, error=reason(error))
        return True


def _key(entry: str) -> str:
    return f"qm:scan-ticks:{entry}"
