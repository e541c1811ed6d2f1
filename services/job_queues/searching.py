"""What a search of jobs looks into, and for: texts, A to Z being the same as a to z, and nothing else special."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import bson

from models.job import jobs
from services.job_queues.errors import InvalidJob
from services.job_queues.plain import plain

LONGEST_TEXT = 2_000  # characters of the arguments of a job that are searched: a search reads thousands of jobs
LONGEST_SEARCH = 256  # characters


def text_of(arguments: Sequence[Any]) -> str:
    """Return the beginning of arguments that MongoDB can store, as JSON: what is kept beside them for searches."""
    stored = bson.decode(bson.encode({"arguments": list(arguments)}), jobs().codec_options)
    return _as_json(plain(stored["arguments"]))[:LONGEST_TEXT]


def pattern_of(search: str) -> str:
    """Return the regular expression of a text, as it is or as JSON writes it. Raises `InvalidJob`."""
    if len(search) > LONGEST_SEARCH:
        raise InvalidJob("search", f"accepted are {LONGEST_SEARCH} characters at most")
    try:
        search.encode()
    except UnicodeEncodeError:
        raise InvalidJob("search", "accepted is a text without halves of characters") from None
    spellings = dict.fromkeys((search, _as_json(search)[1:-1]))
    return "|".join("".join(map(_matching, spelling)) for spelling in spellings)


def _matching(character: str) -> str:
    if not character.isascii():
        return character
    if character.isalpha():
        return f"[{character.lower()}{character.upper()}]"
    return f"\\x{ord(character):02x}"


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
