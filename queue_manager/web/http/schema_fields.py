"""The fields of a JSON schema in words, for the pages that describe the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Schema = Mapping[str, Any]
BOUNDS = (("minimum", "maximum", ""), ("minLength", "maxLength", " characters"), ("minItems", "maxItems", " items"))


class Field(NamedTuple):
    """A parameter, or a member of a body."""

    name: str
    kind: str
    is_required: bool
    default: Any
    """None if there is none."""
    about: str


def parameter_fields(parameters: list[Schema], models: Schema) -> list[Field]:
    return [_field(one["name"], one["schema"], models, is_required=one.get("required", False)) for one in parameters]


def body_fields(body: Schema, models: Schema) -> list[Field]:
    """Return the members of a body, or of the elements of a list, the required ones first."""
    body = resolved(body, models)
    body = resolved(body.get("items", body), models)
    required = body.get("required", ())
    members = sorted(body.get("properties", {}).items(), key=lambda member: member[0] not in required)
    return [_field(name, schema, models, is_required=name in required) for name, schema in members]


def type_in_words(schema: Schema, models: Schema) -> str:
    """Return the type and its bounds, without null: that is the default of what may be left out."""
    schema = resolved(schema, models)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(type_in_words(one, models) for one in schema["anyOf"] if one.get("type") != "null")
    if schema.get("properties"):
        kind = f"object with {', '.join(f'`{name}`' for name in schema['properties'])}"
    elif schema.get("format") == "date-time":
        kind = "ISO 8601 time"
    else:
        kind = str(schema.get("type", "any JSON value")).replace("array", "list")
    words = ", ".join([kind, *_bounds(schema)])
    words += f" matching `{schema['pattern']}`" if "pattern" in schema else ""
    return words + (f"; each: {type_in_words(schema['items'], models)}" if schema.get("items") else "")


def _field(name: str, schema: Schema, models: Schema, *, is_required: bool) -> Field:
    inner: Schema = next((one for one in schema.get("anyOf", ()) if "description" in one), {})
    about = schema.get("description") or inner.get("description", "")
    return Field(name, type_in_words(schema, models), is_required, schema.get("default"), about)


def _bounds(schema: Schema) -> Iterator[str]:
    for lowest, highest, unit in BOUNDS:
        low, high = schema.get(lowest), schema.get(highest)
        if low is not None and high is not None:
            yield f"{low:,.15g} to {high:,.15g}{unit}"
        elif high is not None:
            yield f"up to {high:,.15g}{unit}"
        elif low is not None:
            yield f"at least {low:,.15g}{unit}"


def resolved(schema: Schema, models: Schema) -> Schema:
    """Return a schema, or the model that it refers to."""
    while "$ref" in schema:
        schema = models[schema["$ref"].rpartition("/")[2]]
    return schema
