"""Printing of lists: pages of the HTTP API as tables or JSON, exports as JSON lines or CSV.

Guarantee: text of applications reaches a terminal without control characters or markup, and a spreadsheet without
formulas.
"""

from __future__ import annotations

import csv
import io
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import typer
from pydantic import TypeAdapter

from queue_manager.cli.terminal import console, print_json, print_rows, printable
from queue_manager.core.clock import to_iso
from queue_manager.pauses import PauseState

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet would execute a text that begins with one of these."""

ExportFormat = Literal["jsonl", "csv"]

FormatOption = Annotated[ExportFormat, typer.Option("--format", help="JSON lines, or CSV for spreadsheets.")]
AnswerJsonOption = Annotated[bool, typer.Option("--json", help="Print the JSON response of the HTTP API.")]
CursorOption = Annotated[str | None, typer.Option(help="Cursor printed by the previous page.")]


def print_answer(answer: object) -> None:
    """Print a response of the HTTP API as JSON."""
    print_json(TypeAdapter(type(answer)).dump_json(answer, indent=2, by_alias=True).decode())


def print_table(
    rows: Sequence[object],
    columns: Sequence[str],
    *,
    nothing: str,
    cursor: str | None = None,
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Print some fields of rows as a table, and how to print the next page; `renamed` has other titles than names."""
    titles = [(renamed or {}).get(name, name.replace("_", " ")) for name in columns]
    if rows:
        print_rows(
            console(), [dict(zip(titles, (_text(getattr(row, name)) for name in columns), strict=True)) for row in rows]
        )
    else:
        console().print(nothing)
    print_cursor(cursor)


def print_cursor(cursor: str | None) -> None:
    """Print how to print the next page, unless this is the last one."""
    if cursor is not None:
        console().print(f"more results: --cursor {shlex.quote(cursor)}")


def print_pauses(paused: Mapping[str, PauseState]) -> None:
    """Print since when, by whom and why each is paused."""
    for name, pause in paused.items():
        console().print(printable(f"Paused: {name} {pause}"))


def export_rows(rows: Iterable[str], form: ExportFormat, *, columns: Sequence[str]) -> None:
    """Print JSON objects as they are, one in each line, or their `columns` as CSV."""
    if form == "jsonl":
        for row in rows:
            print_json(row)
        return
    _print_csv_line(columns)
    for row in rows:
        members = json.loads(row)
        _print_csv_line([_csv_cell(members.get(name)) for name in columns])


def _print_csv_line(cells: Sequence[str]) -> None:
    line = io.StringIO()
    csv.writer(line).writerow(map(printable, cells) if sys.stdout.isatty() else cells)
    typer.echo(line.getvalue().encode(errors="backslashreplace"), nl=False)


def _csv_cell(value: Any) -> str:
    text = _text(value)
    return f"'{text}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else text


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return to_iso(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
