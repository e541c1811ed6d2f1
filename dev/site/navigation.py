"""The site's navigation: the sections and links of `docs/README.md`, and the generated pages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_ENTRY = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)\)")

Entries = dict[str, "str | Entries"]


def navigation(index: str, generated: Mapping[str, str], on_site: Callable[[str], str]) -> Entries:
    """Return the path of each page by its title, by section.

    Args:
        index: the text of `docs/README.md`.
        generated: the titles of the generated pages, by path.
        on_site: returns where the page of a link is on the site.
    """
    _, *rest = _SECTION.split(index)
    entries: Entries = {"Home": "index.md"}
    for section, text in zip(rest[::2], rest[1::2], strict=True):
        entries[section] = _entries(text, on_site)
    reference = entries["Reference"]
    assert isinstance(reference, dict)
    reference.update({title: path for path, title in generated.items()})
    return entries


def _entries(text: str, on_site: Callable[[str], str]) -> Entries:
    found: Entries = {}
    for title, path in _ENTRY.findall(text):
        title = title.replace("`", "").replace("\n", " ")
        found[title[0].upper() + title[1:]] = on_site(path)
    return found


def as_toml(entries: Entries) -> str:
    """Return the entries as a TOML array, each page or section an inline table."""
    return "[" + ", ".join(f"{{ {json.dumps(title)} = {_value(value)} }}" for title, value in entries.items()) + "]"


def _value(value: str | Entries) -> str:
    return json.dumps(value) if isinstance(value, str) else as_toml(value)
