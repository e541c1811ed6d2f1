"""The systems that operators paused, in Redis: scans of a paused system dispatch nothing, in all processes.

    qm:pauses   hash {system: JSON of the `PauseState`}

Guarantee: a scan reads it once. If Redis lost its data, no system is paused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from queue_manager.core.clock import truncate
from queue_manager.core.pause import PauseState
from queue_manager.core.redis_client import time_of
from queue_manager.leases import lease_server

PAUSES_KEY = "qm:pauses"

_decode = msgspec.json.Decoder(PauseState).decode


def pause(system: str, *, by: str, reason: str | None = None) -> PauseState:
    """Dispatch no items of a system until it is resumed; items in flight complete. Raises `Unavailable`."""
    with lease_server() as client:
        made = PauseState(at=truncate(time_of(client.time())), by=by, reason=reason)
        client.hset(PAUSES_KEY, system, msgspec.json.encode(made))
    return made


def resume(system: str) -> bool:
    """Dispatch items of a system again; return False if it was not paused. Raises `Unavailable`."""
    with lease_server() as client:
        return bool(client.hdel(PAUSES_KEY, system))


def paused() -> Mapping[str, PauseState]:
    """Return the pauses by system. Raises `Unavailable`."""
    with lease_server() as client:
        found: Any = client.hgetall(PAUSES_KEY)
    return {system.decode(): _decode(made) for system, made in found.items()}
