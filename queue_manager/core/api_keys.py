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
from typing import Any, Literal, get_args

from pydantic import SecretStr

from queue_manager.core.clock import parse_utc
from queue_manager.core.errors import PermanentError

Role = Literal["viewer", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Roles in ascending order of privilege; each includes the previous ones."""

MIN_KEY_LENGTH, MAX_KEY_LENGTH = 32, 512  # characters
MIN_DISTINCT_CHARACTERS = 6  # a random key, even of digits only, has more
API_KEY_MEMBERS = {"name", "key", "role", "expires", "systems"}
API_KEYS_FORM = 'a JSON list of {"name", "key", "role": "viewer" or "operator", "expires"?, "systems"?}'
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_KEY = re.compile(rf"[\x21-\x7e]{{{MIN_KEY_LENGTH},{MAX_KEY_LENGTH}}}")


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """An API key with its owner, role, expiry and systems; `None` means that it does not expire, or is for all."""

    name: str
    key: SecretStr
    role: Role
    expires_at: datetime | None = None
    systems: tuple[str, ...] | None = None

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at


def parse(value: Any) -> list[ApiKey]:
    """Parse keys from JSON. Raises `ValueError`, which names the invalid element and what it must be."""
    keys = [_key(index, one) for index, one in enumerate(_elements(value))]
    _refuse_repeated([key.name for key in keys], "name")
    _refuse_repeated([key.key.get_secret_value() for key in keys], "key")
    return keys


def _elements(value: Any) -> list[Any]:
    try:
        elements = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):  # its text would quote the value
        raise _invalid("not valid JSON") from None
    if not isinstance(elements, list):
        raise ValueError(API_KEYS_FORM)  # noqa: TRY004  # pydantic converts only ValueError
    return elements


def _key(index: int, value: Any) -> ApiKey:
    if not isinstance(value, dict):
        raise _invalid(f"[{index}] must be an object")
    if not value.keys() <= API_KEY_MEMBERS:
        raise _invalid(f"[{index}] has an unknown member")
    name, key, role = (value.get(member) for member in ("name", "key", "role"))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _invalid(f"[{index}].name: 1 to 64 letters, digits, _ . @ or -")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        accepted = f"{MIN_KEY_LENGTH} to {MAX_KEY_LENGTH} visible ASCII characters"
        raise _invalid(f"[{index}].key: {accepted}")
    if len(set(key)) < MIN_DISTINCT_CHARACTERS:
        raise _invalid(f"[{index}].key: random, with at least {MIN_DISTINCT_CHARACTERS} different characters")
    if role not in ROLES:
        raise _invalid(f"[{index}].role: {' or '.join(ROLES)}")
    return ApiKey(
        name=name,
        key=SecretStr(key),
        role=role,
        expires_at=_expiry(index, value.get("expires")),
        systems=_systems(index, value.get("systems")),
    )


def _expiry(index: int, value: Any) -> datetime | None:
    try:
        return parse_utc(value, field="expires")
    except PermanentError:
        accepted = "an ISO 8601 time with a time zone, such as 2027-01-31T00:00:00Z"
        raise _invalid(f"[{index}].expires: {accepted}") from None


def _systems(index: int, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise _invalid(f"[{index}].systems: a list of the names of systems, such as support-snooze")
    return tuple(value)


def _refuse_repeated(values: Sequence[str], member: str) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise _invalid(f"[{index}].{member}: must be unique")


def _invalid(problem: str) -> ValueError:
    return ValueError(f"{API_KEYS_FORM}; {problem}")
