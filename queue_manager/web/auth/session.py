"""The cookie of somebody who logged in: the name of a key and an expiry, signed with a secret made of that key.

Guarantee: it ends with its key, or when it is revoked (`revocation`). Every process that has the key reads it, and no
secret has to be configured.
"""

from __future__ import annotations

import hmac
import secrets
from datetime import datetime, timedelta
from hashlib import sha256

import jwt
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response

from queue_manager.core.clock import hours
from queue_manager.web.auth.keys import Keys, now
from queue_manager.web.auth.principal import Who

COOKIE = "qm_session"
LASTS = hours(12)
_PURPOSE = b"queue-manager session"
_CLAIMS = ["name", "role", "exp"]


def text_for(who: Who) -> tuple[str, timedelta]:
    """Return the cookie's text for the holder of a key, and how long it lasts: never longer than the key."""
    began = now()
    until = min(began + LASTS, who.until or datetime.max.replace(tzinfo=began.tzinfo))
    claims = {"name": who.name, "role": who.role, "exp": int(until.timestamp()), "jti": secrets.token_hex(8)}
    return jwt.encode(claims, _secret(who.digest), algorithm="HS256"), until - began


def read(text: str, keys: Keys) -> Who | None:
    """Return who holds the cookie, `None` when it is no (longer a) good one."""
    try:
        # Whose it says that it is decides only which key must have signed it.
        claimed = jwt.decode(text, options={"verify_signature": False}).get("name")
        found = keys.named(claimed) if isinstance(claimed, str) else None
        if found is None:
            return None
        key, digest = found
        claims = jwt.decode(text, _secret(digest), algorithms=["HS256"], options={"require": _CLAIMS})
        until = datetime.fromtimestamp(int(claims["exp"]), now().tzinfo)
    except (jwt.InvalidTokenError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    if claims["role"] != key.role:  # the key's role was changed since: log in again
        return None
    # Of what is signed: the signature of a copy may be written in several ways. Cookies of 0.1 have no `jti`.
    id = sha256(text.rpartition(".")[0].encode()).hexdigest()[:32]
    return Who(name=key.name, role=key.role, by="session", digest=digest, session=id, until=until)


def shown(headers: Headers) -> str | None:
    """Return the cookie's text as a request sent it."""
    return cookie_parser(headers.get("cookie", "")).get(COOKIE)


def give(response: Response, who: Who, *, is_https: bool) -> None:
    text, lasts = text_for(who)
    response.set_cookie(
        COOKIE, text, max_age=int(lasts.total_seconds()), httponly=True, samesite="strict", secure=is_https
    )


def take_away(response: Response, *, is_https: bool) -> None:
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=is_https)


def _secret(digest: bytes) -> bytes:
    return hmac.digest(digest, _PURPOSE, "sha256")
