"""Types of values that the API returns as JSON: how they are written and described.

A frozen dataclass with these types is a response by itself, also in a service or a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Annotated, Any

from pydantic import ConfigDict, Field, PlainSerializer, WithJsonSchema

from queue_manager.core.clock import to_iso

Moment = Annotated[datetime, PlainSerializer(to_iso), WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time, written as `2026-01-31T09:30:00.000Z`."""
Number = Annotated[int | float, WithJsonSchema({"type": "number"})]
"""A number that keeps its type: 30, not 30.0."""


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many match."""

    count: int
    is_complete: Annotated[bool, Field(description="False if counting stopped early: there are that many or more.")]

    def __str__(self) -> str:
        return f"{self.count}{'' if self.is_complete else ' or more'}"


class NotFinite(ValueError):
    """A number in a JSON text that no float can hold, or a constant that Python reads and JSON does not have."""


def finite(text: str) -> float:
    """Return a number of a JSON text: `parse_float` and `parse_constant` of `json.loads`. Raises `NotFinite`."""
    number = float(text)
    if not isfinite(number):
        raise NotFinite(f"{text} is not a finite number")
    return number


def optional(description: str) -> Any:
    """Return a field that is left out of the response instead of being null."""
    return Field(default=None, exclude_if=lambda value: value is None, description=description)


def _without_defaults(schema: dict[str, Any]) -> None:
    for member in schema["properties"].values():
        member.pop("default", None)


ALWAYS_PRESENT = ConfigDict(json_schema_serialization_defaults_required=True, json_schema_extra=_without_defaults)
"""For `with_config`: members with a default are always in the response, unless they are `optional`."""


def is_within_depth(value: Any, levels: int) -> bool:
    """Return True if lists and objects are nested at most `levels` deep."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return inner is None or (levels > 0 and all(is_within_depth(one, levels - 1) for one in inner))
