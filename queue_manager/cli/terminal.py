"""Printing on a terminal: tables, texts and JSON.

Guarantee: text of applications reaches a terminal without control characters or markup. JSON that is not printed to a
terminal is unchanged byte for byte.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence

import typer
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

MAX_ERROR_LENGTH = 60  # characters of an error in a table
MAX_PAYLOAD_LENGTH = 200  # characters of a payload in a table
DEFAULT_WIDTH = 160  # columns if there is no terminal
MIN_TEXT_WIDTH = 24  # columns of a text that is wrapped; an id, so that it can be copied
MAX_VALUE_WIDTH = 40  # columns of a value that is not wrapped
COLUMN_GAP = 2


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


def print_rows(
    screen: Console,
    rows: Sequence[Mapping[str, str]],
    *,
    numbers: Sequence[str] = (),
    rest: str | None = None,
    hidden_first: Sequence[str] | None = None,
) -> None:
    """Print a table that wraps only long texts. Columns that do not fit into the terminal are named below it instead.

    `rest` is the last column and fills the width. `hidden_first`: the columns that may be left out, the least important
    first; without it all but the first, from the right.
    """
    cells = {title: [printable(row[title]) for row in rows] for title in rows[0]}
    first, *others = cells
    texts = {title for title in others if title == rest or any(map(_is_long, cells[title]))}
    if max(map(cell_len, cells[first])) > screen.width:
        texts.add(first)
    shown = _fitting(cells, texts, screen.width, others[::-1] if hidden_first is None else hidden_first)
    made = Table(box=None, pad_edge=False, header_style="bold", expand=rest in shown)
    for title, heading in shown.items():
        if title == rest:
            made.add_column(heading, overflow="ellipsis", no_wrap=True, ratio=1, style="dim")
        else:
            justify: JustifyMethod = "right" if title in numbers else "left"
            made.add_column(heading, overflow="fold", justify=justify, no_wrap=title not in texts)
    for values in zip(*(cells[title] for title in shown), strict=True):
        made.add_row(*map(Text, values))
    screen.print(made)
    if hidden := [title for title in cells if title not in shown]:
        screen.print(f"not shown, because the terminal is too narrow: {', '.join(hidden)}", soft_wrap=True)


def _is_long(value: str) -> bool:
    width = cell_len(value)
    return width > MAX_VALUE_WIDTH or (" " in value and width > MIN_TEXT_WIDTH)


def _fitting(
    cells: Mapping[str, Sequence[str]], texts: Collection[str], width: int, hidden_first: Sequence[str]
) -> dict[str, str]:
    """Return the columns that fit, each with its heading, which has several lines if it is too wide otherwise."""
    values = {title: max(map(cell_len, column)) for title, column in cells.items()}
    least = {title: min(values[title], MIN_TEXT_WIDTH) if title in texts else values[title] for title in cells}
    whole = {title: max(least[title], cell_len(title)) for title in cells}
    if _total(whole) <= width:
        return {title: title for title in cells}
    widths = {title: max(least[title], *map(cell_len, title.split())) for title in cells}
    for title in hidden_first:
        if _total(widths) <= width:
            break
        widths.pop(title, None)
    return {title: "\n".join(textwrap.wrap(title, widths[title])) for title in widths}


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + COLUMN_GAP * (len(widths) - 1)


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
