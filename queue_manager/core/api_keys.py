"""API keys, parsed strictly from JSON.

Guarantee: no error message and no `repr` contains a secret.

Form: a list of `{"name", "key", "role": "viewer" | "operator", "expires"?: ISO 8601 with a zone, "systems"?: names}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    with_config,
)

from queue_manager.core.clock import parse_utc
from queue_manager.core.errors import PermanentError

Role = Literal["viewer", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Roles in ascending order of privilege; each includes the previous ones."""

MIN_DISTINCT_CHARACTERS = 6  # a random key, even of digits only, has more
API_KEYS_FORM = 'a JSON list of {"name", "key", "role": "viewer" or "operator", "expires"?, "systems"?}'
_KEY = re.compile(r"[\x21-\x7e]{32,512}")
_ACCEPTED = {
    "name": "1 to 64 letters, digits, _ . @ or -",
    "key": f"32 to 512 visible ASCII characters, with at least {MIN_DISTINCT_CHARACTERS} different ones",
    "role": " or ".join(ROLES),
    "expires": "an ISO 8601 time with a time zone, such as 2027-01-31T00:00:00Z",
    "systems": "a list of the names of systems, such as support-snooze",
}
"""By member: what it must be. Pydantic's own messages may quote the value."""


def _random_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if not _KEY.fullmatch(text) or len(set(text)) < MIN_DISTINCT_CHARACTERS:
        raise ValueError
    return key


def _moment(value: Any) -> datetime | None:
    try:
        return parse_utc(value, field="expires")
    except PermanentError as error:
        raise ValueError from error


@with_config(ConfigDict(extra="forbid", strict=True))
@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """An API key with its owner, role, expiry and systems; `None` means that it does not expire, or is for all."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,64}$")]
    key: Annotated[SecretStr, AfterValidator(_random_key)]
    role: Role
    expires_at: Annotated[datetime | None, BeforeValidator(_moment), Field(validation_alias="expires")] = None
    systems: Annotated[tuple[str, ...], Field(min_length=1)] | None = None

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at


_keys = TypeAdapter(list[ApiKey])


def parse(value: Any) -> list[ApiKey]:
    """Parse keys from JSON. Raises `ValueError`, which names the invalid element and what it must be."""
    try:
        keys = _keys.validate_json(value if isinstance(value, str) else json.dumps(value))
    except ValidationError as error:
        raise ValueError(_explain(*error.errors(include_input=False)[0]["loc"])) from None
    _refuse_repeated([key.name for key in keys], "name")
    _refuse_repeated([key.key.get_secret_value() for key in keys], "key")
    return keys


def _explain(index: Any = None, member: Any = None, *_: Any) -> str:
    """Return what is wrong at a place in the list."""
    if index is None:
        return API_KEYS_FORM
    if member is None:
        return f"{API_KEYS_FORM}; [{index}] must be an object"
    if member not in _ACCEPTED:
        return f"{API_KEYS_FORM}; [{index}] has an unknown member"
    return f"{API_KEYS_FORM}; [{index}].{member}: {_ACCEPTED[member]}"


def _refuse_repeated(values: Sequence[str], member: str) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{API_KEYS_FORM}; [{index}].{member}: must be unique")
