"""Ids that are not ObjectIds: of every BSON type that MongoDB accepts as one and that an application may use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from bson import Binary, Code, DBRef, Decimal128, Int64, Timestamp

ODD_IDS: list[Any] = [
    *("aB3dEfGhIjKlMnOpQ", "65a1b2c3d4e5f60718293a4b", 'a/b "c" %2F é', ""),
    *(5, Int64(2**40), 1.5, float("nan"), True, Decimal128("2.50")),
    *(Binary.from_uuid(UUID(int=2**127 - 7)), b"\x00\xff?"),
    *(datetime(2026, 1, 31, 9, 30, tzinfo=UTC), Timestamp(5, 6)),
    *(Code("x"), Code("x", {"a": 1}), DBRef("rooms", 7)),
    *({"tenant": "a", "room": Int64(7)}, {"tenant": float("nan"), "room": Code("x")}),
]
