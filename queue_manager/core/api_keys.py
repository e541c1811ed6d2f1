"""The keys that let programs and people in: read from JSON, strictly; no message and no `repr` shows a secret.

Form: a list of `{"name", "key", "role": "viewer" | "operator", "expires"?: ISO 8601 with a zone}`.
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
"""From the one who may least: each may what those before it may."""

SHORTEST_KEY, LONGEST_KEY = 32, 512  # characters
FEWEST_DIFFERENT = 6  # characters: a random key of digits alone has more
MEMBERS = {"name", "key", "role", "expires"}
FORM = 'a JSON list of {"name", "key", "role": "viewer" or "operator", "expires"?}'
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_KEY = re.compile(rf"[\x21-\x7e]{{{SHORTEST_KEY},{LONGEST_KEY}}}")


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A secret, whose it is, what it allows and until when; `None`: for ever."""

    name: str
    key: SecretStr
    role: Role
    expires_at: datetime | None = None

    def is_over(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at


def parse(given: Any) -> list[ApiKey]:
    """Read keys from JSON text. Raises `ValueError`: what is accepted, and at which place it is not so."""
    keys = [_key(at, one) for at, one in enumerate(_elements(given))]
    _refuse_repeated([key.name for key in keys], "name")
    _refuse_repeated([key.key.get_secret_value() for key in keys], "key")
    return keys


def _elements(given: Any) -> list[Any]:
    try:
        elements = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):  # whose text would quote what was given
        raise ValueError(f"{FORM}; this is no JSON") from None
    if not isinstance(elements, list):
        raise ValueError(FORM)  # noqa: TRY004  # pydantic makes its own errors of these alone
    return elements


def _key(at: int, given: Any) -> ApiKey:
    if not isinstance(given, dict):
        raise ValueError(f"{FORM}; [{at}] is no object")  # noqa: TRY004
    if not given.keys() <= MEMBERS:
        raise ValueError(f"{FORM}; [{at}] has a member of another name")
    name, key, role = (given.get(member) for member in ("name", "key", "role"))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{FORM}; [{at}].name: 1 to 64 letters, digits, _ . @ or -")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        accepted = f"{SHORTEST_KEY} to {LONGEST_KEY} visible ASCII characters"
        raise ValueError(f"{FORM}; [{at}].key: {accepted}")
    if len(set(key)) < FEWEST_DIFFERENT:
        raise ValueError(f"{FORM}; [{at}].key: random, with at least {FEWEST_DIFFERENT} different characters")
    if role not in ROLES:
        raise ValueError(f"{FORM}; [{at}].role: {' or '.join(ROLES)}")
    return ApiKey(name=name, key=SecretStr(key), role=role, expires_at=_expiry(at, given.get("expires")))


def _expiry(at: int, given: Any) -> datetime | None:
    try:
        return parse_utc(given, field="expires")
    except PermanentError:
        accepted = "an ISO 8601 moment with a zone, such as 2027-01-31T00:00:00Z"
        raise ValueError(f"{FORM}; [{at}].expires: {accepted}") from None


def _refuse_repeated(values: Sequence[str], member: str) -> None:
    for at, value in enumerate(values):
        if value in values[:at]:
            raise ValueError(f"{FORM}; [{at}].{member}: one that no other has")
