"""Printing: texts, tables and JSON; pages of the HTTP API as tables or JSON, exports as JSON lines or CSV.

Guarantee: text of applications reaches a terminal without control characters or markup, and a spreadsheet without
formulas. JSON that is not printed to a terminal is unchanged byte for byte.
"""

from __future__ import annotations

import csv
import io
import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Protocol, TypeVar

import typer
from pydantic import TypeAdapter
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from queue_manager.core.clock import to_iso
from queue_manager.pauses import PauseState
from services.message_queue.fields import members

MAX_ERROR_LENGTH = 60  # characters of an error in a table
MAX_PAYLOAD_LENGTH = 200  # characters of a payload in a table
DEFAULT_WIDTH = 160  # columns if there is no terminal, or one of unknown width
MIN_TEXT_WIDTH = 24  # columns of a text that is wrapped; an id, so that it can be copied
MAX_VALUE_WIDTH = 40  # columns of a value that is not wrapped
COLUMN_GAP = 2
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet would execute a text that begins with one of these."""

ExportFormat = Literal["jsonl", "csv"]


class _Page(Protocol):
    @property
    def cursor(self) -> str | None: ...


PageT = TypeVar("PageT", bound=_Page)

FormatOption = Annotated[ExportFormat, typer.Option("--format", help="JSON lines, or CSV for spreadsheets.")]
AnswerJsonOption = Annotated[bool, typer.Option("--json", help="Print the JSON response of the HTTP API.")]
CursorOption = Annotated[str | None, typer.Option(help="Cursor printed by the previous page.")]


def printable(text: str) -> str:
    """Return `text` with control characters escaped."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def print_line(*parts: str | tuple[str, str]) -> None:
    """Print a line of texts, each alone or with its style, with control characters escaped."""
    texts = [(part, "") if isinstance(part, str) else part for part in parts]
    if any(style for _, style in texts):
        _console().print(Text.assemble(*((printable(text), style) for text, style in texts)))
    else:
        typer.echo("".join(printable(text) for text, _ in texts))


def _console() -> Console:
    """Return a console without markup, which leaves the wrapping of texts to the terminal.

    Colours only on a terminal. The width is COLUMNS, if that is above 0, or that of the terminal, or a fixed one.
    """
    width = shutil.get_terminal_size((DEFAULT_WIDTH, 0)).columns
    return Console(width=width, soft_wrap=True, markup=False, emoji=False, highlight=False)


def print_rows(
    rows: Sequence[Mapping[str, str]],
    *,
    nothing: str,
    numbers: Sequence[str] = (),
    rest: str | None = None,
    hidden_first: Sequence[str] | None = None,
) -> None:
    """Print a table that wraps only long texts. Columns that do not fit into the terminal are named below it instead.

    `rest` is the last column and fills the width. `hidden_first`: the columns that may be left out, the least important
    first; without it all but the first, from the right. `nothing` is printed if there are no rows.
    """
    if not rows:
        print_line(nothing)
        return
    screen = _console()
    cells = {title: [Text(printable(row[title])) for row in rows] for title in rows[0]}
    values = {title: max(text.cell_len for text in column) for title, column in cells.items()}
    first, *others = cells
    texts = {title for title in others if title == rest or any(map(_is_long, cells[title]))}
    if values[first] > screen.width:
        texts.add(first)
    shown = _fitting(values, texts, screen.width, others[::-1] if hidden_first is None else hidden_first)
    made = Table(box=None, pad_edge=False, header_style="bold", expand=rest in shown)
    for title, heading in shown.items():
        if title == rest:
            made.add_column(heading, overflow="ellipsis", no_wrap=True, ratio=1, style="dim")
        else:
            justify: JustifyMethod = "right" if title in numbers else "left"
            made.add_column(heading, overflow="fold", justify=justify, no_wrap=title not in texts)
    for row in zip(*(cells[title] for title in shown), strict=True):
        made.add_row(*row)
    screen.print(made, soft_wrap=False)
    if hidden := [title for title in cells if title not in shown]:
        print_line(f"not shown, because the terminal is too narrow: {', '.join(hidden)}")


def _is_long(cell: Text) -> bool:
    return cell.cell_len > MAX_VALUE_WIDTH or (" " in cell and cell.cell_len > MIN_TEXT_WIDTH)


def _fitting(
    values: Mapping[str, int], texts: Collection[str], width: int, hidden_first: Sequence[str]
) -> dict[str, str]:
    """Return the columns that fit, each with its heading, which has several lines if it is too wide otherwise.

    `values`: the width of the widest value of each column.
    """
    least = {title: min(values[title], MIN_TEXT_WIDTH) if title in texts else values[title] for title in values}
    whole = {title: max(least[title], cell_len(title)) for title in values}
    if _total(whole) <= width:
        return {title: title for title in values}
    widths = {title: max(least[title], *map(cell_len, title.split())) for title in values}
    for title in hidden_first:
        if _total(widths) <= width:
            break
        widths.pop(title, None)
    return {title: "\n".join(textwrap.wrap(title, widths[title])) for title in widths}


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + COLUMN_GAP * (len(widths) - 1)


def print_json(text: str) -> None:
    """Print JSON unchanged; on a terminal, control characters are escaped as in JSON."""
    if sys.stdout.isatty():
        text = "".join(character if character.isprintable() else _escaped(character) for character in text)
    typer.echo(text.encode(errors="backslashreplace"))


def print_document(content: Any) -> None:
    """Print a value of JSON in one line, as `print_json` does."""
    print_json(json.dumps(content, ensure_ascii=False))


def _escaped(character: str) -> str:
    return " " if character in "\t\r\n" else json.dumps(character)[1:-1].replace("\x7f", "\\u007f")


# Lists and responses of the HTTP API


def print_answer(answer: object) -> None:
    """Print a response of the HTTP API as JSON."""
    print_json(TypeAdapter(type(answer)).dump_json(answer, indent=2, by_alias=True).decode())


def print_table(
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    *,
    nothing: str,
    cursor: str | None = None,
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Print some fields of rows as a table, and how to print the next page; `renamed` has other titles than names."""
    titles = [(renamed or {}).get(name, name.replace("_", " ")) for name in columns]
    cells = [dict(zip(titles, (_text(row[name]) for name in columns), strict=True)) for row in rows]
    print_rows(cells, nothing=nothing)
    print_cursor(cursor)


def print_cursor(cursor: str | None) -> None:
    """Print how to print the next page, unless this is the last one."""
    if cursor is not None:
        print_line(f"more results: --cursor {shlex.quote(cursor)}")


def print_pauses(paused: Mapping[str, PauseState]) -> None:
    """Print since when, by whom and why each is paused."""
    for name, pause in paused.items():
        print_line(f"Paused: {name} {pause}")


def every_page(read: Callable[[str | None], PageT]) -> Iterator[PageT]:
    """Yield all pages of a list; `read` returns the one after a cursor."""
    page = read(None)
    yield page
    while page.cursor is not None:
        page = read(page.cursor)
        yield page


def export_rows(rows: Iterable[str], form: ExportFormat, *, columns: Sequence[str]) -> None:
    """Print JSON objects as they are, one in each line, or their `columns` as CSV, with numbers as they are written."""
    if form == "jsonl":
        for row in rows:
            print_json(row)
        return
    _print_csv_line(columns)
    for row in rows:
        cells = members(row)
        _print_csv_line([_csv_cell(cells.get(name, "null")) for name in columns])


def _print_csv_line(cells: Sequence[str]) -> None:
    line = io.StringIO()
    csv.writer(line).writerow(map(printable, cells) if sys.stdout.isatty() else cells)
    typer.echo(line.getvalue().encode(errors="backslashreplace"), nl=False)


def _csv_cell(value: str) -> str:
    """Return a JSON value for a spreadsheet: a string without its quotation marks, null as an empty cell."""
    if not value.startswith('"'):
        return "" if value == "null" else value
    text: str = json.loads(value)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return to_iso(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
