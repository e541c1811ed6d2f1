"""Text search of jobs: substrings, with case-insensitive ASCII letters and no other special characters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import bson

from models.job import jobs
from services.job_queues.errors import InvalidJob
from services.job_queues.json_form import json_value

MAX_TEXT_LENGTH = 2_000  # characters of the arguments that are searched, because a search reads thousands of jobs
MAX_SEARCH_LENGTH = 256  # characters


def search_text(arguments: Sequence[Any]) -> str:
    """Return the beginning of the arguments as JSON, which is stored with the job for searches."""
    stored = bson.decode(bson.encode({"arguments": list(arguments)}), jobs().codec_options)
    return _as_json(json_value(stored["arguments"]))[:MAX_TEXT_LENGTH]


def search_pattern(search: str) -> str:
    """Return a regular expression that matches a text, plain or escaped as JSON. Raises `InvalidJob`."""
    if len(search) > MAX_SEARCH_LENGTH:
        raise InvalidJob("search", f"must have at most {MAX_SEARCH_LENGTH} characters")
    try:
        search.encode()
    except UnicodeEncodeError:
        raise InvalidJob("search", "must not contain unpaired surrogates") from None
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
