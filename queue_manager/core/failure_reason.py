"""Reasons of failures without what differs from one failure to the next, so that the same failures can be grouped."""

from __future__ import annotations

import re
from functools import lru_cache

from queue_manager.core.wording import without_traceback

MAX_COMPARED_LENGTH = 300  # characters of a reason
MAX_LITERAL_LENGTH = 100  # characters

_QUOTED = re.compile(r""" "[^"]*" | (?<!\w)'[^']*'(?!\w) | `[^`]*` """, re.VERBOSE)
_MAY_VARY = re.compile(r"[\d/@\\]|::")
"""What a word without it never varies: most words, which cost little then."""
_VARIABLES = re.compile(
    r"""
    (?P<url> \b[a-z][a-z0-9+.-]{1,9}://[^\s)\]]+ )
  | (?P<email> \b[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+ )
  | (?P<id> \b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b
      | \b(?=[a-z]*\d)(?=\d*[a-z])[0-9a-f]{8,}\b | \b(?=[A-Z]*\d)(?=\d*[A-Z])[0-9A-F]{8,}\b | \b0[xX][0-9a-fA-F]+\b
      | \b[A-Za-z]+[_-](?=\w*\d\w*\d)\w+\b | \b(?=\d*[A-Za-z])(?=\w*\d\w*\d)\w{16,}\b )
  | (?P<time> \b\d{4}-\d\d-\d\d(?:T\d\d:\d\d[\d:.,]*(?:Z|[+-]\d\d:?\d\d)?)? | \b\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?\b )
  | (?P<address> \b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b
      | \[?(?<![\w:])(?=[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:]*)[0-9a-fA-F:]{3,39}(?![\w:])(?:\](?::\d+)?)? )
  | (?P<path> (?<![\w/.])(?:~|\.{1,2})?(?:/[\w.@%+~-]+){2,}/? | \b[A-Za-z]:\\\S+ )
  | (?P<duration> (?<![\w.])\d+(?:\.\d+)?(?:ns|us|µs|ms|s|min|h|d)\b )
  | (?P<number> (?<![\w.])[-+]?\d[\d,_]*(?:\.\d+)*(?:[eE][-+]?\d+)?(?![^\W\d_]) )
    """,
    re.VERBOSE,
)
_DURATION = re.compile(r"<number> (?:ns|us|µs|ms|s|secs?|seconds?|min|mins|minutes?|h|hours?|d|days?)\b")
_PLACEHOLDER = re.compile("<[a-z]+>")


@lru_cache(maxsize=8_192)  # a list of failures is read again and again
def normalize(reason: str) -> str:
    """Return a reason with a word such as `<id>` or `<number>` for each text that is different every time.

    Of a Python traceback, which names the same lines for different errors, it is the last line.
    """
    words = _QUOTED.sub("<value>", without_traceback(reason)[:MAX_COMPARED_LENGTH]).split()
    text = " ".join(_VARIABLES.sub(_placeholder, word) if _MAY_VARY.search(word) else word for word in words)
    return _DURATION.sub("<duration>", text)[:MAX_COMPARED_LENGTH]


def _placeholder(found: re.Match[str]) -> str:
    return f"<{found.lastgroup}>"


def longest_literal(reason: str) -> str:
    """Return the longest text that all reasons like this one contain."""
    parts = (part.strip() for part in _PLACEHOLDER.split(normalize(reason)))
    return max((part for part in parts if part in reason), key=len, default="")[:MAX_LITERAL_LENGTH].strip()
