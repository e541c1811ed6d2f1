"""Bodies that routes read by hand, described for OpenAPI: `openapi_extra=body(a_member=TEXT, …)`."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

ANY: Schema = {}
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
SWITCH: Schema = {"type": "boolean"}
MOMENT: Schema = {"type": "string", "format": "date-time"}


def many(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def thing(*needed: str, **members: Schema) -> Schema:
    """Describe an object; `needed` are the members that must be given."""
    return {"type": "object", "properties": members} | ({"required": list(needed)} if needed else {})


def body(schema: Schema, *, is_needed: bool = True) -> dict[str, Any]:
    """Describe a body of JSON."""
    return {"requestBody": {"required": is_needed, "content": {"application/json": {"schema": schema}}}}
