"""Reading Markdown pages: fenced blocks with the marker before them, and relative links."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FENCE = re.compile(
    r"(?:^ *<!-- (?P<marker>[^>]*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"^ *<!-- .*?-->\n", re.MULTILINE | re.DOTALL)
_RELATIVE_LINK = re.compile(
    r"(?<=\]\()(?![a-z]+:)[^)\s]+(?=\))|(?<=(?:src|ref)=\")(?![a-z]+:)[^\"]+|(?<=srcset=\")[^\"]+"
)


@dataclass(frozen=True)
class Block:
    """A fenced block. `marker` is the text of the HTML comment on the line before it, or empty."""

    language: str
    code: str
    marker: str
    line: int

    @property
    def is_session(self) -> bool:
        """Whether it shows commands after `$`, with their output."""
        return self.language == "console" or (self.language == "" and self.code.startswith(("$ ", ">>> ")))


def blocks(text: str) -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        line = text.count("\n", 0, found.start("language")) + 1
        yield Block(found["language"], code, found["marker"] or "", line)


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Return `text` with `change` applied to everything except fenced blocks."""
    changed, end = [], 0
    for found in _FENCE.finditer(text):
        changed += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*changed, change(text[end:])])


def without_comments(text: str) -> str:
    return _COMMENT.sub("", text)


def with_links(text: str, change: Callable[[str], str]) -> str:
    """Return `text` with every relative link replaced by what `change` returns for it."""
    return outside_fences(text, lambda part: _RELATIVE_LINK.sub(lambda found: change(found[0]), part))


def relative_links(text: str) -> list[str]:
    return _RELATIVE_LINK.findall(_FENCE.sub("", text))
