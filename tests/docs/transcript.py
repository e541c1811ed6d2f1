"""Comparing what a page shows with what a program printed."""

from __future__ import annotations

import re

_ID = r"\b[0-9a-f]{24}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32}-\d+|\b\w{6,}…"
_MOMENT = r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?|\b1\d{9}\.\d+|\bepoch \d+"
_CLOCK = r"(?:\b\d+ [A-Z][a-z]{2}(?: \d{4})?, )?\b\d\d:\d\d(?::\d\d)? UTC"
_SPAN = r"\b\d+(?:\.\d+)? (?:s|min|h)\b(?: \d+ (?:s|min|h)\b)?"
_VARIABLE = re.compile(
    rf"(?P<id>{_ID})|(?P<moment>{_MOMENT})|(?P<clock>{_CLOCK})|(?P<span>{_SPAN})|(?P<any>…)|(?P<space>\s+)"
)


class Transcript:
    """Matches outputs; remembers which actual id stands for an id that the page shows.

    An ellipsis matches any text, durations match any other duration, and times any other time, also of another day. An
    id, or the beginning of a secret followed by an ellipsis, matches any word at first, and afterwards only the same
    one.
    """

    def __init__(self) -> None:
        self._actual: dict[str, str] = {}

    def matches(self, expected: str, output: str) -> bool:
        found = re.search(self._pattern(expected.strip()), " ".join(output.split()), re.DOTALL)
        if found:
            new = [name for name in dict.fromkeys(self._ids(expected)) if name not in self._actual]
            self._actual |= dict(zip(new, found.groups(), strict=True))
        return found is not None

    def filled_in(self, command: str) -> str:
        """Return a command with the actual ids in place of those that the page shows."""
        for shown, actual in self._actual.items():
            command = command.replace(shown, actual)
        return command

    @staticmethod
    def _ids(text: str) -> list[str]:
        return re.findall(_ID, text)

    def _pattern(self, expected: str) -> str:
        pattern, end, seen = "", 0, dict[str, int]()
        for found in _VARIABLE.finditer(expected):
            pattern += re.escape(expected[end : found.start()])
            end = found.end()
            if shown := found["id"]:
                if shown in self._actual:
                    pattern += re.escape(self._actual[shown])
                elif shown in seen:
                    pattern += rf"\{seen[shown]}"
                else:
                    seen[shown] = len(seen) + 1
                    pattern += r"([\w-]+)"
            elif moment := found["moment"]:
                pattern += re.sub(r"\d+(?:\\?\.\d+)?", r"[\\d.]+", re.escape(moment))
            elif found["clock"]:
                pattern += _CLOCK
            elif found["span"]:
                pattern += _SPAN
            else:
                pattern += ".*" if found["any"] else r"\s*"
        return pattern + re.escape(expected[end:])
