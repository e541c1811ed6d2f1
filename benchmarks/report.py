"""The results, on the screen and as the committed page `benchmarks/results.md`."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.explain import Explained
from benchmarks.harness import Result

Row = tuple[str, ...]
_TIMES = ("way", "seconds (range)", "times ours (range)")
_COSTS = ("statement", "keys read", "documents read", "most memory", "disk")


def show(results: Sequence[Result], console: Console) -> None:
    table = Table(
        caption=f"Every result was checked. {_machine()}", caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for number, heading in enumerate(_TIMES):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for result in results:
        table.add_row(f"[bold]{result.title}[/bold]", "", f"[dim]{_load(result)}[/dim]")
        for name, *figures in _times(result):
            table.add_row(f" {name}", *figures)
        table.add_section()
    console.print(table)


def page(results: Sequence[Result], *, server: str) -> str:
    """Return the results as Markdown."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`; do not edit. Our way stands beside the obvious one; both ran in turn on the same "
        "data and server, and every result was checked before it was timed in. What holds on another machine are "
        "the ratios, taken round by round, and the keys and documents that were read; the seconds do not. Figures are "
        "medians; the load is the machine's average of a minute, before and after, and other work had a part in it.",
        "",
        f"{_machine()}; {server}. `make bench QUICK=1` takes a tenth of the data and writes nothing.",
        "",
    ]
    for result in results:
        lines += [f"## {result.title.capitalize()}", "", f"{result.data}.", *result.notes]
        lines += [f"{result.rounds} rounds; {_load(result)}.", ""]
        lines += [*_markdown(_TIMES, _times(result)), ""]
        lines += ["What the server says of our statements, one of each kind:", ""]
        lines += [*_markdown(_COSTS, map(_cost, result.explained)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _times(result: Result) -> Iterable[Row]:
    for name, took in result.times.items():
        yield (name, str(took), str(result.ratios.get(name, 1)))


def _load(result: Result) -> str:
    return "load {:.1f} → {:.1f}".format(*result.load)


def _cost(explained: Explained) -> Row:
    memory = f"{explained.memory / 2**20:.0f} MiB" if explained.memory else "not told"
    return (
        explained.statement,
        f"{explained.keys:,}",
        f"{explained.documents:,}",
        memory,
        "used" if explained.used_disk else "not used",
    )


def _markdown(headings: Row, rows: Iterable[Row]) -> Iterable[str]:
    yield "| " + " | ".join(headings) + " |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _machine() -> str:
    return f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
