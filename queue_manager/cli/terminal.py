"""Printing on a terminal: tables, texts and JSON.

Guarantee: text of applications reaches a terminal without control characters or markup. JSON that is not printed to a
terminal is unchanged byte for byte.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

MAX_ERROR_LENGTH = 60  # characters of an error in a table
MAX_PAYLOAD_LENGTH = 200  # characters of a payload in a table
DEFAULT_WIDTH = 160  # columns if there is no terminal


def printable(text: str) -> str:
    """Return `text` with control characters escaped."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def console() -> Console:
    """Return a console without markup; colours only on a terminal, and a fixed width if there is none."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if has_width else DEFAULT_WIDTH, markup=False, emoji=False, highlight=False)


def table(
    titles: Sequence[str], *, numbers: Sequence[str] = (), whole: Sequence[str] = (), rest: str | None = None
) -> Table:
    """Return an empty table. `numbers` and `whole` are not wrapped; the last column, `rest`, fills the width."""
    made = Table(box=None, pad_edge=False, header_style="bold", expand=rest is not None)
    for title in titles:
        if title in whole:
            made.add_column(title, no_wrap=True)
        else:
            is_number = title in numbers
            made.add_column(title, overflow="fold", justify="right" if is_number else "left", no_wrap=is_number)
    if rest is not None:
        made.add_column(rest, overflow="ellipsis", no_wrap=True, ratio=1, style="dim")
    return made


def add_row(table: Table, cells: Iterable[object]) -> None:
    """Add a row of texts, with control characters escaped."""
    table.add_row(*(Text(printable(str(cell))) for cell in cells))


def print_json(text: str) -> None:
    """Print JSON unchanged; on a terminal, control characters are escaped as in JSON."""
    if sys.stdout.isatty():
        text = "".join(character if character.isprintable() else _escaped(character) for character in text)
    typer.echo(text.encode(errors="backslashreplace"))


def _escaped(character: str) -> str:
    return " " if character in "\t\r\n" else json.dumps(character)[1:-1].replace("\x7f", "\\u007f")
