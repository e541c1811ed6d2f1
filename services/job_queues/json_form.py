"""Conversion of jobs to JSON."""

from __future__ import annotations

from datetime import datetime
from math import isfinite
from typing import Any

from bson import ObjectId, json_util

from models.database import Document
from queue_manager.core.clock import to_iso

HIDDEN_FIELDS = {"key", "unique_key", "singular_key", "first", "text"}


def as_json(document: Document) -> dict[str, Any]:
    """Return a job as JSON: ids and times as texts, other BSON types as extended JSON."""
    return {name: json_value(value) for name, value in document.items() if name not in HIDDEN_FIELDS}


def json_value(value: Any) -> Any:
    """Return a BSON value as JSON."""
    if isinstance(value, datetime):
        return to_iso(value)
    if isinstance(value, ObjectId):
        return str(value)
    if isinstance(value, dict):
        return {str(name): json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and isfinite(value)):
        return value
    return json_util.default(value, json_options=json_util.CANONICAL_JSON_OPTIONS)
