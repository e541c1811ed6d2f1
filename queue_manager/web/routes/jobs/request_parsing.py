"""What a client gave, read strictly: a JSON object with known members, each of the accepted form.

A member that is null counts as not given. Each refusal names the member.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Annotated, Any, NoReturn

from fastapi import Depends, Request

from queue_manager.core.clock import parse_utc
from queue_manager.core.errors import PermanentError
from queue_manager.web.http.request_body import malformed, read
from services.job_queues import InvalidJob
from services.job_queues.checks import MAX_ARGUMENTS_BYTES, MAX_DELAY

LARGEST_BODY = MAX_ARGUMENTS_BYTES * 11 // 10
LONGEST_FIELD = 64  # characters of a name that is quoted
MOST_NAMES = 1_000

Given = dict[str, Any]


async def _body(request: Request) -> bytes:
    return await read(request, LARGEST_BODY, field="body")


Body = Annotated[bytes, Depends(_body)]


def members(body: bytes, *names: str) -> Given:
    """Return the members that are given. Raises `Refused`: no JSON object; `InvalidJob`: one has none of `names`."""
    try:
        given = json.loads(body.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise malformed("it is nested too deeply") from None
    except ValueError as error:
        raise malformed(f"{error!s:.200}") from None
    if not isinstance(given, dict):
        raise malformed("not an object")
    for name in given:
        if name not in names:
            known = f"the fields are {', '.join(names)}" if names else "there are none"
            raise InvalidJob(name[:LONGEST_FIELD], f"no such field; {known}")
    return {name: value for name, value in given.items() if value is not None}


def nothing(body: bytes) -> None:
    """Accept an empty body or `{}`. Raises like `members`."""
    if body.strip():
        members(body)


def list_of(given: Given, name: str, *, default: list[Any] | None = None) -> list[Any]:
    value = given.get(name, default)
    if not isinstance(value, list):
        raise InvalidJob(name, "accepted is a list" + ("" if name in given else "; it is missing"))
    return value


def names_of(given: Given, name: str) -> list[str]:
    """Return a list of texts, which is not empty. Raises `InvalidJob`."""
    value = list_of(given, name)
    if not 1 <= len(value) <= MOST_NAMES or not all(isinstance(one, str) for one in value):
        raise InvalidJob(name, f"accepted is a list of 1 to {MOST_NAMES} texts")
    return value


def switch_of(given: Given, name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise InvalidJob(name, "accepted is true or false")
    return value


def moment_of(given: Given) -> datetime | None:
    """Return `at`. Raises `InvalidJob`."""
    try:
        return parse_utc(given.get("at"), field="at")
    except PermanentError:
        raise InvalidJob("at", "accepted is an ISO 8601 moment with a zone, such as 2026-01-31T09:30:00Z") from None


def delay_of(given: Given) -> timedelta | None:
    """Return `delay_seconds`. Raises `InvalidJob`."""
    value = given.get("delay_seconds")
    if value is None:
        return None
    most = int(MAX_DELAY.total_seconds())
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise InvalidJob("delay_seconds", f"accepted is a number from 0 to {most}")
    return timedelta(seconds=value)


@contextmanager
def naming(**fields: str) -> Iterator[None]:
    """Let an `InvalidJob` name a field as the client knows it."""
    try:
        yield
    except InvalidJob as error:
        if error.field not in fields:
            raise
        accepted = str(error).partition(": ")[2]
        raise InvalidJob(fields[error.field], accepted) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
