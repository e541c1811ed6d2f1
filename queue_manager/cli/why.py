"""`queue-manager why`: what an id names, and why that is in its state."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from queue_manager.cli.completion import complete_system
from queue_manager.cli.terminal import AnswerJsonOption, console, print_answer, printable
from queue_manager.explanation import Explanation, TimelineEvent
from queue_manager.operations.diagnosis import Diagnosis, diagnose
from queue_manager.operations.systems import find_system

TONE_STYLES = {"good": "green", "neutral": "dim", "warn": "yellow", "bad": "red"}


def why(
    id: Annotated[str, typer.Argument(help="The id of an item, a message, a job or a task.", metavar="ID")],
    system: Annotated[
        str | None, typer.Option(help="Search only this system.", metavar="NAME", autocompletion=complete_system)
    ] = None,
    as_json: AnswerJsonOption = False,
) -> None:
    """Explain why an item, message or job is in its state.

    Also shows what happened to it. Times are UTC. Searches all systems. Exit code 1 if nothing has the id.

    Example: `queue-manager why 65a1b2c3d4e5f60718293a4b`
    """
    names = None if system is None else [find_system(system).name]
    diagnosis = diagnose(id, system_names=names)
    if as_json:
        print_answer(diagnosis)
    else:
        print_diagnosis(diagnosis, id)
    sys.exit(0 if diagnosis.found else 1)


def print_diagnosis(diagnosis: Diagnosis, id: str) -> None:
    """Print what an id names, why that is in its state, and its timeline."""
    screen = console()
    for number, found in enumerate(diagnosis.found):
        if number:
            screen.print()
        screen.print(_heading(found))
        screen.print(printable(found.answer))
        for event in found.timeline:
            screen.print(_line(event))
        if not found.has_whole_timeline:
            screen.print("  There may be more: reading the batches of a day took too long.")
    for system, reason in diagnosis.unread.items():
        screen.print(f"{system} could not be searched: {printable(reason)}")
    if not diagnosis.found:
        where = " elsewhere" if diagnosis.unread else ""
        screen.print(f"No item, message, job or task has the id {printable(id)}{where}.")


def _heading(found: Explanation) -> Text:
    title = f"  {printable(found.title)}" if found.title else ""
    name = (f"{found.kind} {printable(found.id)}", "bold")
    return Text.assemble(name, title, "  ", (printable(found.label), TONE_STYLES[found.tone]))


def _line(event: TimelineEvent) -> Text:
    duration = "" if event.duration_ms is None else f"took {event.duration_ms:,} ms"
    worker = "" if event.worker is None else f"on {event.worker}"
    task = "" if event.task_id is None else f"task {event.task_id}"
    parts = (event.event, event.detail, worker, duration, task, event.error or "")
    return Text(f"  {_time(event.at)}  {printable('  '.join(filter(None, parts)))}")


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")
