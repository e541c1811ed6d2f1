"""`queue-manager systems`: the state, the scans, the history and the schedule of systems, as the pages show them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Annotated, Any

import typer

from beat_schedule import systems
from models import outbox
from models.scan_run import ScanRun
from queue_manager import pauses
from queue_manager.cli.completion import complete_system
from queue_manager.cli.errors import fail
from queue_manager.cli.terminal import (
    AnswerJsonOption,
    CursorOption,
    print_answer,
    print_line,
    print_pauses,
    print_table,
)
from queue_manager.core.clock import seconds, to_iso
from queue_manager.core.errors import Unavailable
from queue_manager.core.json_types import Number
from queue_manager.core.settings import settings
from queue_manager.core.wording import many
from queue_manager.health_rules import Problem
from queue_manager.operations.system_schemas import History, ScheduleEntry, SystemHistory, SystemState
from queue_manager.operations.systems import (
    find_system,
    last_day,
    one_system,
    read_overview,
    read_schedule,
    scan_page,
    system_history,
)
from queue_manager.server_calls import mongodb
from services.history import Range

STATUS_COLUMNS = (
    *("name", "state", "due", "in_progress", "stuck", "failed", "lag_seconds", "done_per_minute"),
    *("failed_per_minute", "next_scan_at"),
)
SCAN_COLUMNS = tuple(one.name for one in fields(ScanRun) if one.name != "is_paused")
SCHEDULE_COLUMNS = ("name", "state", "period_seconds", "cron", "is_running", "next_run_at")

SystemName = Annotated[
    str,
    typer.Argument(help="A system; see `queue-manager systems list`.", metavar="NAME", autocompletion=complete_system),
]
OneOrAll = Annotated[
    str | None, typer.Argument(help="A system; all without it.", metavar="NAME", autocompletion=complete_system)
]


def status(name: OneOrAll = None, as_json: AnswerJsonOption = False) -> None:
    """Show the items by state, the rates and the problems.

    Counts the items that are due, in progress, stuck and failed, and calls of `after` that have not succeeded, which a
    paused system does not repeat. Numbers that could not be read are empty. Exit code 1 if MongoDB or Redis does not
    answer.

    Example: `queue-manager systems status support-snooze --json`
    """
    system = None if name is None else find_system(name)
    state = asyncio.run(read_overview())
    unread = [text for text in (state.servers.mongodb, state.servers.redis) if text]
    if as_json:
        print_answer(state if system is None else one_system(state, system))
    else:
        shown = [one for one in state.systems if system is None or one.name == system.name]
        rows = [{**_row(one, one.idle), "due": _due(one)} for one in shown]
        print_table(rows, STATUS_COLUMNS, nothing="no system")
        print_pauses({one.name: one.pause for one in shown if one.pause is not None})
        _print_pending_calls([one.name for one in shown])
        _print_problems(unread, state.all_problems if system is None else shown[0].problems)
    if unread:
        raise typer.Exit(1)


def scans(
    name: SystemName,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of scans.")] = 20,
    cursor: CursorOption = None,
    slowest: Annotated[bool, typer.Option("--slowest", help="The slowest first, without a cursor.")] = False,
    as_json: AnswerJsonOption = False,
) -> None:
    """List the scans of the last 24 hours, newest first. Times are UTC.

    Example: `queue-manager systems scans support-snooze --slowest`
    """
    page = scan_page(find_system(name), cursor, limit, "duration" if slowest else "at")
    if as_json:
        print_answer(page)
    else:
        shown = [vars(scan) for scan in page.scans]
        print_table(shown, SCAN_COLUMNS, nothing="no scan in 24 hours", cursor=page.cursor)


def history(
    name: OneOrAll = None,
    chosen: Annotated[Range | None, typer.Option("--range", help="How far back, with NAME; otherwise 24h.")] = None,
    as_json: AnswerJsonOption = False,
) -> None:
    """Show how many items were done and failed over time.

    Of one system in steps of a range, or of all systems in 24 hours. The JSON also has the percentiles and the marks of
    the charts.

    Example: `queue-manager systems history support-snooze --range 7d`
    """
    if name is None and chosen is not None:
        fail("--range requires NAME; without it the history covers 24 hours", code=2)
    found = last_day(systems()) if name is None else system_history(find_system(name), chosen or "24h")
    if as_json:
        print_answer(found)
    elif isinstance(found, History):
        _print_day(found)
    else:
        _print_steps(found)


def schedule(as_json: AnswerJsonOption = False) -> None:
    """Show when each scan runs next, and whether it runs now.

    `--json` also has its last ten runs. Times are UTC.

    Example: `queue-manager systems schedule`
    """
    found = read_schedule()
    paused = pauses.paused()
    if as_json:
        print_answer(found)
        return
    idle = {one.name: one.idle(settings(), is_paused=one.name in paused) for one in systems()}
    print_table([_row(entry, idle[entry.name]) for entry in found.entries], SCHEDULE_COLUMNS, nothing="no scan")
    print_pauses(paused)
    leader = "no leader" if found.leader is None else f"leader {found.leader.holder}"
    print_line(leader)


def state_text(idle: str | None, *, is_on: bool) -> str:
    """Return `on`, `off`, or why a system that is on dispatches nothing."""
    return (idle or "on") if is_on else "off"


def _row(system: SystemState | ScheduleEntry, idle: str | None) -> dict[str, Any]:
    return {**dict(system), "state": state_text(idle, is_on=system.is_on)}


def _due(system: SystemState) -> Number | str | None:
    return f"{system.due}+" if system.due and system.due == system.counted_to else system.due


def _print_steps(found: SystemHistory) -> None:
    step = seconds(found.step_seconds)
    steps = [
        {"begin": to_iso(found.begins_at + number * step), **dict(zip(found.outcomes, counts, strict=True))}
        for number, counts in enumerate(zip(*found.outcomes.values(), strict=True))
        if any(counts)
    ]
    print_table(steps, ("begin", *found.outcomes), nothing="nothing ended in this range")


def _print_day(day: History) -> None:
    rows = [
        {"name": name, "ended": ", ".join(f"{outcome} {sum(counts)}" for outcome, counts in found.items())}
        for name, found in day.systems.items()
        if found is not None
    ]
    print_table(rows, ("name", "ended"), nothing="no system", renamed={"ended": "in the last 24 hours"})


def _print_pending_calls(names: Sequence[str]) -> None:
    """Print how many calls of `after` have not succeeded. Those of a paused system are no problem of health."""
    with suppress(Unavailable), mongodb():  # the status names a server that does not answer
        for name, count in outbox.counts().items():
            if name in names:
                print_line(f"Pending: {name} {many(count, 'call')} of `after`, each for a batch of items")


def _print_problems(unread: Sequence[str], problems: Sequence[Problem]) -> None:
    for text in unread:
        print_line(text)
    for one in problems:
        print_line(f"{one.severity:<8}  {one.system}, {one.rule.id}: {one.text}")
