"""The history of a message: what happened to it since its first delivery, packed into lines by the scripts.

Guarantee: at most 2,000 bytes are kept for a message, the newest events; a message that was never delivered has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast, get_args

EventKind = Literal["delivered", "touched", "requeued", "dead-lettered", "acknowledged", "replayed", "archived"]

_LINE = re.compile(rf"({'|'.join(get_args(EventKind))}) (\d{{1,15}}) (.*)")
_DELIVERY = re.compile(r"(\d{1,10}) (.*)")


@dataclass(frozen=True, kw_only=True)
class MessageEvent:
    """One event, at Unix seconds by the server's clock; touches in a row are one event, at the last of them."""

    event: EventKind
    at: float
    attempt: int | None = None
    """Of a delivery, counted from 1."""
    consumer_id: str | None = None
    """Of a delivery whose consumer gave a name."""
    touches: int | None = None
    reason: str | None = None
    """Why it was requeued or dead-lettered; its first 200 bytes."""


def parse_events(packed: str) -> Iterator[MessageEvent]:
    """Yield the events of a record, oldest first. Lines that another program wrote are omitted."""
    for line in packed.split("\n"):
        if not (found := _LINE.fullmatch(line)):
            continue
        kind, at, text = cast(EventKind, found[1]), int(found[2]) / 1000, found[3]
        if kind == "delivered" and (delivery := _DELIVERY.fullmatch(text)):
            yield MessageEvent(event=kind, at=at, attempt=int(delivery[1]), consumer_id=delivery[2] or None)
        elif kind == "touched" and text.isdecimal():
            yield MessageEvent(event=kind, at=at, touches=int(text[:10]))
        else:
            yield MessageEvent(event=kind, at=at, reason=text or None)
