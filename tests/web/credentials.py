"""Keys for tests, and processes that ask for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.web.web_process import Answer, Web

VIEWER = "a-viewer's-key-of-the-tests-0123456789"
OPERATOR = "an-operator's-key-of-the-tests-0123456"
EXPIRED = "an-expired-key-of-the-tests-0123456789"
UNKNOWN = "a-key-that-nobody-knows-0123456789-abc"
LONG_AGO = "2020-01-01T00:00:00Z"


def key(name: str, key: str, role: str, expires: str | None = None) -> dict[str, str]:
    return {"name": name, "key": key, "role": role, **({"expires": expires} if expires else {})}


EYE, HAND = key("eye", VIEWER, "viewer"), key("hand", OPERATOR, "operator")
KEYS = json.dumps([EYE, HAND, key("old", EXPIRED, "operator", LONG_AGO)])


def rewrite(file: Path, *keys: Mapping[str, object]) -> None:
    """Replace the keys as an operator should: by renaming."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(keys))
    new.rename(file)


def log_in(process: Web, key: str, **headers: str) -> Answer:
    return process.post("/login", f"key={key}", **headers)


def cookie(process: Web, key: str) -> str:
    """Return what a browser sends after logging in."""
    answer = log_in(process, key)
    assert answer.status == 303, answer.text
    return str(answer.headers["set-cookie"]).partition(";")[0]


def own_page(process: Web, key: str) -> dict[str, Any]:
    """Return the headers of a request that our own page sends for somebody who logged in."""
    return {"Cookie": cookie(process, key), "Sec_Fetch_Site": "same-origin"}
