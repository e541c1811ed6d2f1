"""Validation of arguments: names, states, job arguments, priorities, times and ids. Raises `InvalidJob`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import bson
from bson import ObjectId, json_util
from bson.errors import BSONError

from models.database import read_id
from models.job import JobState
from queue_manager.core.clock import EPOCH, truncate
from queue_manager.core.errors import PermanentError
from services.job_queues.errors import InvalidJob
from services.job_queues.registry import NAME, NAME_RULE

MAX_PRIORITY = 100
MAX_ARGUMENTS_BYTES = 1024 * 1024  # of one job
MAX_ID_LENGTH = 1024  # characters, of ids that are not ObjectIds
MAX_ARGUMENT_DEPTH = 64  # levels of nesting; MongoDB refuses documents of 200 levels
MAX_DELAY = timedelta(days=3650)
STATE_ALIASES = {"cancelled": JobState.CANCELED}


def job_key(name: str, arguments: Sequence[Any]) -> str:
    """Return a hash that is equal for jobs with the same name and arguments."""
    text = json_util.dumps([name, list(arguments)], sort_keys=True, json_options=json_util.CANONICAL_JSON_OPTIONS)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def checked_name(name: Any) -> str:
    """Return `name` if it is a valid job name. Raises `InvalidJob`."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidJob("name", f"{name!r:.80} is not a valid name; {NAME_RULE}")
    return name


def checked_state(state: Any) -> JobState:
    """Return the state of this name; `cancelled` is an alias of `canceled`. Raises `InvalidJob`."""
    try:
        return STATE_ALIASES.get(state) or JobState(state)
    except (ValueError, TypeError):
        states = ", ".join(JobState)
        raise InvalidJob("state", f"{state!r:.40} is not a state; must be one of {states}") from None


def checked_arguments(arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments if MongoDB can store them. Raises `InvalidJob`, which names the first invalid one."""
    size = 0
    for number, argument in enumerate(arguments, start=1):
        if not _is_within_depth(argument, MAX_ARGUMENT_DEPTH):
            raise InvalidJob("arguments", f"argument {number} must have at most {MAX_ARGUMENT_DEPTH} levels of nesting")
        try:
            size += len(bson.encode({"argument": argument}))
        except (BSONError, OverflowError, RecursionError, ValueError, TypeError) as error:
            raise InvalidJob("arguments", f"MongoDB cannot store argument {number} ({error!s:.200})") from None
    if size > MAX_ARGUMENTS_BYTES:
        raise InvalidJob("arguments", f"must have at most {MAX_ARGUMENTS_BYTES} bytes as BSON, not {size}")
    return list(arguments)


def _is_within_depth(value: Any, levels: int) -> bool:
    """Return True if lists and documents are nested at most `levels` deep."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return inner is None or (levels > 0 and all(_is_within_depth(one, levels - 1) for one in inner))


def checked_priority(priority: Any) -> int:
    """Return `priority` if it is an integer from -100 to 100. Raises `InvalidJob`."""
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
        raise InvalidJob("priority", f"must be a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return priority


def checked_due(at: Any, delay: Any, now: datetime) -> datetime:
    """Return the due time: `at`, or `delay` after now, or now. Raises `InvalidJob` if out of range."""
    if at is not None and delay is not None:
        raise InvalidJob("at", "`at` and `delay` must not both be given")
    if delay is not None:
        if not isinstance(delay, timedelta) or not timedelta(0) <= delay <= MAX_DELAY:
            raise InvalidJob("delay", f"must be a timedelta from 0 to {MAX_DELAY.days} days")
        return truncate(now + delay)
    if at is None:
        return now
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidJob("at", "must be a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1)")
    try:
        moment = truncate(at.astimezone(UTC))
    except OverflowError:  # at the limits of datetime
        moment = None
    if moment is None or not EPOCH <= moment <= now + MAX_DELAY:
        raise InvalidJob("at", f"must be a time within {MAX_DELAY.days} days")
    return moment


def checked_id(id: Any) -> ObjectId:
    """Return `id` as an ObjectId. Raises `InvalidJob`."""
    if not is_id(id):
        raise InvalidJob("id", f"{id!r:.60} is not a job id; must be 24 hexadecimal digits")
    return ObjectId(id)


def is_id(id: Any) -> bool:
    """Return True if `id` is a valid job id."""
    return isinstance(id, str | ObjectId) and ObjectId.is_valid(id)


def possible_ids(id: Any) -> list[Any]:
    """Return the ids of other types that a text may represent: the text itself, and its value as extended JSON."""
    if not isinstance(id, str) or not id.isprintable() or len(id) > MAX_ID_LENGTH:
        return []
    try:
        return [id, read_id(id, field="id")]
    except PermanentError:
        return [id]
