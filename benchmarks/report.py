"""The results, on the screen and as the committed page `benchmarks/results.md`."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from datetime import date

from rich import box
from rich import table as screen
from rich.console import Console

from benchmarks.explain import Explained
from benchmarks.harness import Result, Table

HEADING = "\n## "
Row = Sequence[str]
_COSTS = ("statement", "keys read", "documents read", "most memory", "disk")


def show(results: Sequence[Result], console: Console) -> None:
    for result in results:
        console.print(f"[bold]{result.title}[/bold]  [dim]{result.data}; {_load(result)}[/dim]")
        for table in _tables(result, are_short=True):
            console.print(_on_screen(table))
    console.print(f"Every result was checked. {_machine()}")


def ratios(results: Sequence[Result]) -> str:
    """Return the ratios by name, as JSON: what a later run is compared with, on any machine."""
    return _as_json({name: ratio for result in results for name, ratio in _ratios(result).items()})


def with_ratios(known: str, result: Result) -> str:
    """Return known ratios, as JSON, with those of a result in the place of its last ones."""
    others = {name: ratio for name, ratio in json.loads(known).items() if not name.startswith(f"{result.title}: ")}
    return _as_json({**others, **_ratios(result)})


def _ratios(result: Result) -> dict[str, dict[str, float]]:
    return {
        f"{result.title}: {way}": {
            "median": round(ratio.median, 3),
            "least": round(min(ratio.values), 3),
            "most": round(max(ratio.values), 3),
        }
        for way, ratio in result.ratios.items()
    }


def _as_json(found: dict[str, dict[str, float]]) -> str:
    return json.dumps(found, indent=2, sort_keys=True) + "\n"


def _on_screen(table: Table) -> screen.Table:
    shown = screen.Table(box=box.SIMPLE_HEAD, pad_edge=False, title=table.caption or None, title_justify="left")
    for number, heading in enumerate(table.headings):
        in_two_lines = heading.replace(" ", "\n", 1)
        shown.add_column(in_two_lines, justify="right" if number else "left", no_wrap=True)
    for row in table.rows:
        shown.add_row(*row)
    return shown


def with_section(page: str, result: Result) -> str:
    """Return the page with a section for this result: in the place of its last one, or at the end."""
    _, *old = page.split(HEADING)
    sections = {section.partition("\n")[0]: section for section in old}
    sections[_heading(result)] = _section(result)
    parts = [_introduction(), *(section.rstrip() + "\n" for section in sections.values())]
    return HEADING.join(parts)


def _heading(result: Result) -> str:
    return result.title[0].upper() + result.title[1:]


def _introduction() -> str:
    return (
        "# Benchmarks\n\n"
        "Written by `make bench`; do not edit. Each table compares Queue Manager with other ways to do the same work, "
        "which ran in turn on the same data and servers. A result is reported only if it was checked and is correct. "
        "What holds on another machine are the ratios, taken round by round, and the keys and documents that were "
        "read; the seconds do not. Figures are "
        "medians, and the server's are of its processor time; the load is the machine's average of a minute, before "
        "and after, and other work had a part in it.\n\n"
        f"{_machine()}. `make bench QUICK=1` takes a tenth of the data and writes nothing; `make bench ONLY=rooms` "
        "measures one group, and the other results stay.\n"
    )


def _section(result: Result) -> str:
    lines = [_heading(result), "", f"{result.data}.", *result.notes]
    rounds = f"{result.rounds} round{'s' if result.rounds > 1 else ''}"
    lines += [f"{rounds} on {date.today():%Y-%m-%d} with {result.server}; {_load(result)}.", ""]
    for table in _tables(result):
        lines += [table.caption, ""] if table.caption else []
        lines += [*_markdown(table), ""]
    return "\n".join(lines)


def _tables(result: Result, *, are_short: bool = False) -> Iterable[Table]:
    """Yield what was found out; short, as the screen has room for."""
    yield _figures(result, are_short=are_short)
    if result.explained and not are_short:
        caption = "What the server says of our statements, one of each kind:"
        yield Table(caption=caption, headings=_COSTS, rows=[_cost(explained) for explained in result.explained])
    yield from result.tables


def _figures(result: Result, *, are_short: bool) -> Table:
    """Return the ways, their figures and ratios; short, the ratios alone have ranges."""
    headings = [heading if are_short else f"{heading} (range)" for heading in result.figures]
    rows = []
    for way in result.ways:
        of_way = [by_way[way] for by_way in result.figures.values()]
        figures = [figure.short if are_short else str(figure) for figure in of_way]
        rows.append([way, figures[0], str(result.ratios.get(way, 1)), *figures[1:]])
    return Table(caption="", headings=["way", headings[0], f"{result.compared} (range)", *headings[1:]], rows=rows)


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


def _markdown(table: Table) -> Iterable[str]:
    yield "| " + " | ".join(table.headings) + " |"
    yield "|" + "---|" * len(table.headings)
    for row in table.rows:
        yield "| " + " | ".join(row) + " |"


def _machine() -> str:
    return f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
