"""Fields of a job: their validation, which raises `InvalidJob`, and their form as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from math import isfinite
from typing import Any

import bson
from bson import ObjectId, json_util
from bson.errors import BSONError

from models.database import Document
from models.document_id import read_id
from models.job import JOB_SORT_FIELDS, JobId, JobState, jobs
from models.job_operations import CHANGEABLE_FIELDS
from queue_manager.core.clock import EPOCH, to_iso, truncate
from queue_manager.core.errors import InvalidField, PermanentError
from queue_manager.core.json_types import is_within_depth
from queue_manager.core.wording import did_you_mean

JOB_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
JOB_NAME_RULE = "must be 1 to 128 letters, digits or any of _ . : -"
STATE_ALIASES = {"cancelled": JobState.CANCELED}
MAX_PRIORITY = 100
MAX_ARGUMENTS_BYTES = 1024 * 1024  # of one job
MAX_ARGUMENT_DEPTH = 64  # levels of nesting; MongoDB refuses documents of 200 levels
_REFERENCE = b"\x02$ref\0"  # a string named `$ref`, as BSON has it
MAX_DELAY = timedelta(days=3650)
MAX_SEARCH_TEXT_LENGTH = 2_000  # characters of the arguments; a search reads the text of thousands of jobs
MAX_JOB_SEARCH_LENGTH = 256  # characters
MAX_JOB_ID_LENGTH = 1024  # characters, of ids that are not ObjectIds
INTERNAL_FIELDS = {
    "key",
    "unique_key",
    "singular_key",
    "first",
    "text",
    "fence",
    "settled",
    "page",
    "reserved",
    "alone",
    "uncounted",
}

# In a search pattern, after `":` and `,`.
_SPACES_OF_JSON = re.compile(r"(?<=\\x22\\x3a)(?:\\x20)+|(?<=\\x2c)(?:\\x20)+")

_sorted_json = json.JSONEncoder(sort_keys=True).encode  # `json.dumps` makes an encoder at every call
_compact_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class InvalidJob(InvalidField):
    """A job or an argument is invalid."""


# Validation


def checked_name(name: Any, *, field: str = "name") -> str:
    """Return `name` if it is a valid job name."""
    if not isinstance(name, str) or not JOB_NAME.fullmatch(name):
        raise InvalidJob(field, f"{name!r:.80} is not a valid name; {JOB_NAME_RULE}")
    return name


def checked_state(state: Any) -> JobState:
    """Return the state of this name; `cancelled` is an alias of `canceled`."""
    try:
        return STATE_ALIASES.get(state) or JobState(state)
    except (ValueError, TypeError):
        states = ", ".join(JobState)
        near = did_you_mean(state, JobState) if isinstance(state, str) else ""
        raise InvalidJob("state", f"{state!r:.40} is not a state{near}; must be one of {states}") from None


def checked_states(states: Iterable[Any]) -> list[JobState]:
    """Return the states of these names."""
    if isinstance(states, str):  # a sequence of states of one letter
        raise InvalidJob("states", f"must be a list of states, not the string {states!r:.100}")
    return [checked_state(state) for state in states]


def checked_arguments(arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments if MongoDB can store them; the error names the first invalid one."""
    size = 0
    for number, argument in enumerate(arguments, start=1):
        if not is_within_depth(argument, MAX_ARGUMENT_DEPTH):
            raise InvalidJob("arguments", f"argument {number} must have at most {MAX_ARGUMENT_DEPTH} levels of nesting")
        try:
            stored = bson.encode({"argument": argument})
            size += len(stored)
            if _REFERENCE in stored and _has_reference(argument):
                raise TypeError("the driver would read an object with `$ref` and `$id` as a DBRef")
        except (BSONError, OverflowError, RecursionError, ValueError, TypeError) as error:
            raise InvalidJob("arguments", f"MongoDB cannot store argument {number} ({error!s:.200})") from None
    if size > MAX_ARGUMENTS_BYTES:
        raise InvalidJob("arguments", f"must have at most {MAX_ARGUMENTS_BYTES} bytes as BSON, not {size}")
    return list(arguments)


def _has_reference(value: Any) -> bool:
    """Return True if a dict in the value would become a DBRef, by which MongoDB's driver replaces such dicts."""
    if isinstance(value, dict):
        return (isinstance(value.get("$ref"), str) and "$id" in value) or any(map(_has_reference, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_reference, value))


def checked_priority(priority: Any) -> int:
    """Return `priority` if it is an integer from -100 to 100."""
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
        raise InvalidJob("priority", f"must be a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return priority


def checked_due(at: Any, delay: Any, now: datetime) -> datetime:
    """Return the due time: `at`, or `delay` after now, or now."""
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


def read_job_id(text: Any) -> JobId:
    """Parse the id of a job from the text that `id_text` returns, in which a text stands in quotation marks."""
    try:
        id = read_id(str(text), field="id")
    except PermanentError:
        id = None
    if not isinstance(id, JobId):
        raise invalid_id(text)
    return id


def invalid_id(id: Any) -> InvalidJob:
    """Return the error for a text that is not the id of a job."""
    return InvalidJob(
        "id", f"{id!r:.60} is not a job id; must be 24 hexadecimal digits, or the string id of an adopted job"
    )


def sort_field(sort: str) -> str:
    """Return the field of a sort order; `created` is the order of ids."""
    orders = {"created": "_id", **{field: field for field in JOB_SORT_FIELDS}}
    if sort not in orders:
        raise InvalidJob("sort", f"must be one of {', '.join(orders)}")
    return orders[sort]


def search_pattern(search: str) -> str:
    """Return a regular expression that finds a text, plain or escaped as JSON; ASCII letters match in either case.

    A text with spaces between the members of JSON, as commands print it, also finds the stored one, which has none.
    """
    if len(search) > MAX_JOB_SEARCH_LENGTH:
        raise InvalidJob("search", f"must have at most {MAX_JOB_SEARCH_LENGTH} characters")
    try:
        search.encode()
    except UnicodeEncodeError:
        raise InvalidJob("search", "must not contain unpaired surrogates") from None
    patterns = ("".join(map(_character_pattern, one)) for one in (search, _compact_json(search)[1:-1]))
    return "|".join(dict.fromkeys(_SPACES_OF_JSON.sub(r"\\x20*", one) for one in patterns))


def _character_pattern(character: str) -> str:
    if not character.isascii():
        return character
    if character.isalpha():
        return f"[{character.lower()}{character.upper()}]"
    return f"\\x{ord(character):02x}"


def new_job(
    name: str, arguments: Sequence[Any], *, due: datetime, priority: Any, repetition: Document, now: datetime
) -> Document:
    """Return the document of a job of a valid name. Raises `InvalidJob`."""
    document = {
        "_id": ObjectId(),
        "name": name,
        "arguments": checked_arguments(arguments),
        "state": JobState.PENDING,
        "priority": checked_priority(priority),
        "due": due,
        "waiting": due,
        "created": now,
        "updated": now,
        "attempts": 0,
        "key": job_key(name, arguments),
        "text": search_text(arguments),
        "history": [{"at": now, "state": JobState.PENDING}],
    }
    if repetition:
        document["repetition"] = {**repetition, "since": due}
    return document


# Conversion


def job_key(name: str, arguments: Sequence[Any]) -> str:
    """Return a hash that is equal for jobs with the same name and arguments."""
    if _is_plain(arguments):
        text = _sorted_json([name, _canonical(arguments)])
    else:
        text = json_util.dumps([name, list(arguments)], sort_keys=True, json_options=json_util.CANONICAL_JSON_OPTIONS)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def search_text(arguments: Sequence[Any]) -> str:
    """Return the beginning of the arguments as JSON, which is stored with the job for searches."""
    if _is_plain(arguments):
        return _compact_json(arguments)[:MAX_SEARCH_TEXT_LENGTH]
    stored = bson.decode(bson.encode({"arguments": list(arguments)}), jobs().codec_options)
    return _compact_json(json_value(stored["arguments"]))[:MAX_SEARCH_TEXT_LENGTH]


def _is_plain(value: Any) -> bool:
    """Return True if a value has only types of JSON, so that it need not be converted by way of BSON, which is slow."""
    kind = type(value)
    if kind is list or kind is tuple:
        return all(map(_is_plain, value))
    if kind is dict:
        return all(type(key) is str and not key.startswith("$") for key in value) and all(
            map(_is_plain, value.values())
        )
    return value is None or kind in (str, bool, int) or (kind is float and isfinite(value))


def _canonical(value: Any) -> Any:
    """Return a plain value as canonical extended JSON."""
    kind = type(value)
    if kind is list or kind is tuple:
        return [_canonical(one) for one in value]
    if kind is dict:
        return {key: _canonical(one) for key, one in value.items()}
    if kind is int:
        return {"$numberInt" if -(2**31) <= value < 2**31 else "$numberLong": str(value)}
    return {"$numberDouble": repr(value)} if kind is float else value


def changeable(document: Document) -> dict[str, Any]:
    """Return the fields of a job that users change, as JSON."""
    return {name: json_value(document.get(name)) for name in CHANGEABLE_FIELDS}


def as_json(document: Document) -> dict[str, Any]:
    """Return a job as JSON: ids and times as texts, other BSON types as extended JSON."""
    return {name: json_value(value) for name, value in document.items() if name not in INTERNAL_FIELDS}


def json_value(value: Any) -> Any:
    """Return a BSON value as JSON."""
    if isinstance(value, datetime):
        return to_iso(value)
    if isinstance(value, ObjectId):
        return str(value)
    if isinstance(value, dict):
        return {str(name): json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and isfinite(value)):
        return value
    return json_util.default(value, json_options=json_util.CANONICAL_JSON_OPTIONS)
