"""The history of a message: what happened to it since its first delivery, packed into lines by the scripts.

Guarantee: at most 2,000 bytes are kept for a message, the newest events; a message that was never delivered has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, cast, get_args

from pydantic import with_config

from queue_manager.core.json_types import ALWAYS_PRESENT, optional

EventKind = Literal["delivered", "touched", "requeued", "dead-lettered", "acknowledged", "replayed", "archived"]

_LINE = re.compile(rf"({'|'.join(get_args(EventKind))}) (\d{{1,15}}) (.*)")
_DELIVERY = re.compile(r"(\d{1,10}) (.*)")


@with_config(ALWAYS_PRESENT)
@dataclass(frozen=True, kw_only=True)
class HistoryEvent:
    """What happened to a message. Members that do not apply are left out."""

    event: EventKind
    at: float
    """Unix seconds by the server's clock."""
    attempt: Annotated[int | None, optional("Of a delivery, counted from 1.")] = None
    consumer_id: Annotated[str | None, optional("To whom it was delivered, as the consumer named itself.")] = None
    touches: Annotated[
        int | None,
        optional("How many touches in a row this event stands for; `at` is the last."),
    ] = None
    reason: Annotated[str | None, optional("Why it was requeued or dead-lettered; its first 200 bytes.")] = None


def parse_events(packed: str) -> Iterator[HistoryEvent]:
    """Yield the events of a record, oldest first. Lines that another program wrote are omitted."""
    for line in packed.split("\n"):
        if not (found := _LINE.fullmatch(line)):
            continue
        kind, at, text = cast(EventKind, found[1]), int(found[2]) / 1000, found[3]
        if kind == "delivered" and (delivery := _DELIVERY.fullmatch(text)):
            yield HistoryEvent(event=kind, at=at, attempt=int(delivery[1]), consumer_id=delivery[2] or None)
        elif kind == "touched" and text.isdecimal():
            yield HistoryEvent(event=kind, at=at, touches=int(text[:10]))
        else:
            yield HistoryEvent(event=kind, at=at, reason=text or None)
