"""What callers may ask for: names, states, arguments, priorities, times. What is not accepted raises `InvalidJob`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import bson
from bson import ObjectId, json_util
from bson.errors import BSONError

from models.database import read_id
from models.job import EPOCH, State
from queue_manager.core.clock import truncate
from queue_manager.core.errors import PermanentError
from services.job_queues.errors import InvalidJob
from services.job_queues.registry import ACCEPTED_NAME, NAME

HIGHEST_PRIORITY = 100
LARGEST = 1024 * 1024  # bytes of the arguments of one job
LONGEST_ID = 1024  # characters of an id of another type
DEEPEST = 64  # levels of an argument: MongoDB refuses a document of 200
FARTHEST = timedelta(days=3650)
SPELLINGS = {"cancelled": State.CANCELED}


def key_of(name: str, arguments: Sequence[Any]) -> str:
    """Return what is equal for jobs of the same name and arguments."""
    said = json_util.dumps([name, list(arguments)], sort_keys=True, json_options=json_util.CANONICAL_JSON_OPTIONS)
    return sha256(said.encode("utf-8", "surrogatepass")).hexdigest()


def checked_name(name: Any) -> str:
    """Return a name that jobs may have. Raises `InvalidJob`."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidJob("name", f"{name!r:.80} names no job; {ACCEPTED_NAME}")
    return name


def checked_state(state: Any) -> State:
    """Return a state; `cancelled` is understood. Raises `InvalidJob`."""
    try:
        return SPELLINGS.get(state) or State(state)
    except (ValueError, TypeError):
        states = ", ".join(State)
        raise InvalidJob("state", f"{state!r:.40} is no state; accepted are {states}") from None


def checked_arguments(arguments: Sequence[Any]) -> list[Any]:
    """Return arguments that the database can keep. Raises `InvalidJob`, which names the first that it cannot."""
    size = 0
    for number, argument in enumerate(arguments, start=1):
        if not _is_flat(argument, DEEPEST):
            raise InvalidJob("arguments", f"argument {number} is too deep; accepted are {DEEPEST} levels at most")
        try:
            size += len(bson.encode({"argument": argument}))
        except (BSONError, OverflowError, RecursionError, ValueError, TypeError) as error:
            raise InvalidJob("arguments", f"MongoDB cannot store argument {number} ({error!s:.200})") from None
    if size > LARGEST:
        raise InvalidJob("arguments", f"they have {size} bytes; accepted are {LARGEST} at most")
    return list(arguments)


def _is_flat(value: Any, levels: int) -> bool:
    """Tell whether lists and documents are within one another no more than `levels` deep."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return inner is None or (levels > 0 and all(_is_flat(one, levels - 1) for one in inner))


def checked_priority(priority: Any) -> int:
    """Return a whole number from -100 to 100. Raises `InvalidJob`."""
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > HIGHEST_PRIORITY:
        raise InvalidJob("priority", f"accepted is a whole number from -{HIGHEST_PRIORITY} to {HIGHEST_PRIORITY}")
    return priority


def checked_due(at: Any, delay: Any, now: datetime) -> datetime:
    """Return when a job is due: `at`, after `delay`, or now. Raises `InvalidJob`: both are given, or too far away."""
    if at is not None and delay is not None:
        raise InvalidJob("at", "`at` and `delay` both say when; accepted is one of them")
    if delay is not None:
        if not isinstance(delay, timedelta) or not timedelta(0) <= delay <= FARTHEST:
            raise InvalidJob("delay", f"accepted is a timedelta from 0 to {FARTHEST.days} days")
        return truncate(now + delay)
    if at is None:
        return now
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidJob(
            "at", "accepted is a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1)"
        )
    try:
        moment = truncate(at.astimezone(UTC))
    except OverflowError:  # of the first or last day that there is
        moment = None
    if moment is None or not EPOCH <= moment <= now + FARTHEST:
        raise InvalidJob("at", f"accepted is a moment within {FARTHEST.days} days")
    return moment


def checked_id(id: Any) -> ObjectId:
    """Return the id of a job. Raises `InvalidJob`."""
    if not is_id(id):
        raise InvalidJob("id", f"{id!r:.60} is no id of a job; accepted are 24 hexadecimal digits")
    return ObjectId(id)


def is_id(id: Any) -> bool:
    """Return True if this can be the id of a job."""
    return isinstance(id, str | ObjectId) and ObjectId.is_valid(id)


def other_ids(id: Any) -> list[Any]:
    """Return the ids of other types that a text may mean: itself, and what it is in extended JSON."""
    if not isinstance(id, str) or not id.isprintable() or len(id) > LONGEST_ID:
        return []
    try:
        return [id, read_id(id, field="id")]
    except PermanentError:
        return [id]
