"""Pauses that operators made. Those of systems are in Redis: scans of a paused system dispatch nothing, in any process.

    qm:pauses   hash {system: JSON of the `PauseState`}

Guarantee: a scan that is running dispatches at most one more batch, of up to `QM_CLAIM_BATCH` items. If Redis lost its
data, no system is paused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from pydantic import Field, with_config

from queue_manager.core.clock import to_iso, truncate
from queue_manager.core.json_types import ALWAYS_PRESENT, Moment
from queue_manager.core.redis_client import time_of
from queue_manager.leases import lease_server

PAUSES_KEY = "qm:pauses"
MAX_REASON_LENGTH = 500  # characters
COMMAND_LINE = "command line"
LOCAL_USER = "loopback"
"""The user name that is stored for changes through a web process without keys, which listens on loopback only."""


@with_config(ALWAYS_PRESENT)
@dataclass(frozen=True, kw_only=True)
class PauseState:
    """A pause that an operator made; what is unknown is null."""

    at: Moment | None = None
    by: Annotated[str | None, Field(description="Who paused it: the name of the key, or `command line`.")] = None
    reason: str | None = None

    def __str__(self) -> str:
        """Return `since … by …: reason`, as far as it is known."""
        since = "" if self.at is None else f" since {to_iso(self.at)}"
        by = "" if self.by is None else f" by {person(self.by)}"
        return f"{since}{by}{f': {self.reason}' if self.reason else ''}".strip()


def person(name: str) -> str:
    """Return what texts for people call the one with this name, who paused or changed something."""
    return "someone on this machine" if name == LOCAL_USER else name


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


def is_paused(system: str) -> bool:
    """Return True if a system is paused. Raises `Unavailable`."""
    with lease_server() as client:
        return bool(client.hexists(PAUSES_KEY, system))


def paused() -> Mapping[str, PauseState]:
    """Return the pauses by system. Raises `Unavailable`."""
    with lease_server() as client:
        found: Any = client.hgetall(PAUSES_KEY)
    return {system.decode(): _decode(made) for system, made in found.items()}
