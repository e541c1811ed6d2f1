"""Tokens of Socket.IO clients: JWTs, signed by the product with HS256, that list the accounts of a client.

Claims: `accounts`, a list of account ids; `exp`, optional: seconds since the epoch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jwt

from queue_manager.core.errors import AppError

_ACCOUNT = re.compile(r"[A-Za-z0-9_-]{1,64}")


class TokenRefused(AppError):
    """The token gives no access; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """The accounts whose events a client may receive, and until when; `None` means all, without an end."""

    accounts: frozenset[str] | None = None
    expires_at: float | None = None
    has_ended: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)
    """Returns True once the key or session of the client has ended."""

    def allows(self, account: str) -> bool:
        return self.accounts is None or account in self.accounts

    def is_over(self) -> bool:
        return self.has_ended() or (self.expires_at is not None and time.time() >= self.expires_at)


ANY = Access()


def is_account(value: Any) -> bool:
    """Return True if `value` has the form of an account id: 1 to 64 letters, digits, `_` or `-`."""
    return isinstance(value, str) and _ACCOUNT.fullmatch(value) is not None


def read(token: Any, *, secret: str) -> Access:
    """Return the access that `token` gives. Raises `TokenRefused`."""
    if not isinstance(token, str):
        raise TokenRefused('A token is required: connect with auth={"token": ...}')
    try:
        claims = jwt.decode(token, secret, algorithms=["HS256"], options={"require": ["accounts"]})
        expires_at = float(claims["exp"]) if "exp" in claims else None
    except (jwt.InvalidTokenError, TypeError, ValueError, OverflowError) as error:  # from an invalid `exp`, too
        raise TokenRefused(f"The token is refused: {error}") from None
    accounts = claims["accounts"]
    if not isinstance(accounts, list) or not all(map(is_account, accounts)):
        raise TokenRefused("The token is refused: its claim accounts must be a list of account ids")
    return Access(accounts=frozenset(accounts), expires_at=expires_at)
