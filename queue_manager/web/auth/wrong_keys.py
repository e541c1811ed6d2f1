"""Rate limit for wrong keys: responses to an address that tries many keys are delayed.

Guarantee: a valid key is never refused or delayed because of wrong keys from the same address or proxy; memory is
bounded. Distinct keys are counted: a program that repeats one wrong key guesses nothing, and has a higher limit.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from http import HTTPStatus

from queue_manager.core.log import get_logger
from queue_manager.web.http.errors import ApiError

WINDOW = 60.0  # seconds
FREE_KEYS, FREE_ATTEMPTS = 10, 1_000  # distinct wrong keys, and attempts with any of them, per address and window
DELAY_STEP, MAX_DELAY = 0.1, 2.0  # seconds; each further wrong key is delayed by one more step
MAX_DELAYED = 50  # delayed responses at a time, over all addresses; further ones are sent without a delay
MAX_ADDRESSES = 1_000

log = get_logger("QM/access")


@dataclass
class _Window:
    ends_at: float
    keys: set[bytes] = field(default_factory=set)
    attempts: int = 0
    excess: int = 0


class WrongKeys:
    """The wrong keys of the last minute, by address."""

    def __init__(self) -> None:
        self._windows: OrderedDict[str, _Window] = OrderedDict()
        self._delayed = 0

    async def count(self, key_digest: bytes, address: str | None) -> None:
        """Count a wrong key. Raises `ApiError` (429, after a growing delay) beyond the limits of its address."""
        network = _network(address)
        window = self._window(network)
        window.attempts += 1
        digest = key_digest[:8]
        is_repeated = digest in window.keys
        if is_repeated and window.attempts <= FREE_ATTEMPTS:
            return
        if not is_repeated and len(window.keys) < FREE_KEYS:
            window.keys.add(digest)
            return
        window.excess += 1
        if window.excess == 1:
            log.warning(
                "Many wrong keys from one address: further ones are refused for a growing time", address=network
            )
        await self._delay(min(window.excess * DELAY_STEP, MAX_DELAY))
        left = max(1, math.ceil(window.ends_at - time.monotonic()))
        message = f"Too many wrong keys; try again in {left} s. A valid key is accepted at once"
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "too many wrong keys", message, headers={"retry-after": str(left)})

    def _window(self, network: str) -> _Window:
        now = time.monotonic()
        window = self._windows.get(network)
        if window is None or window.ends_at <= now:
            window = self._windows[network] = _Window(ends_at=now + WINDOW)
        self._windows.move_to_end(network)
        if len(self._windows) > MAX_ADDRESSES:
            self._windows.popitem(last=False)
        return window

    async def _delay(self, seconds: float) -> None:
        if self._delayed >= MAX_DELAYED:
            return
        self._delayed += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._delayed -= 1


def _network(address: str | None) -> str:
    """Return the network that counts as one address: for IPv6 the /64, which is usually one customer's."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return "unknown"  # a proxy passed on text from its client that is not an address
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed  # so a socket that listens on `::` shows clients over IPv4
    return str(parsed) if parsed.version == 4 else str(ipaddress.ip_network((parsed, 64), strict=False))
