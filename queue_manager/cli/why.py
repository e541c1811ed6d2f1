"""`queue-manager why`: what an id names, and why that is in its state."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from queue_manager.cli.completion import complete_system
from queue_manager.cli.terminal import AnswerJsonOption, print_answer, print_line
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
        _print_diagnosis(diagnosis, id)
    if not diagnosis.found:
        raise typer.Exit(1)


def _print_diagnosis(diagnosis: Diagnosis, id: str) -> None:
    """Print what an id names, why that is in its state, and its timeline."""
    for number, found in enumerate(diagnosis.found):
        if number:
            print_line()
        _print_heading(found)
        print_line(found.answer)
        for event in found.timeline:
            print_line(_line(event))
        if not found.has_whole_timeline:
            print_line("  There may be more: reading the batches of a day took too long.")
    for system, reason in diagnosis.unread.items():
        print_line(f"{system} could not be searched: {reason}")
    if not diagnosis.found:
        where = " elsewhere" if diagnosis.unread else ""
        print_line(f"No item, message, job or task has the id {id}{where}.")


def _print_heading(found: Explanation) -> None:
    title = f"  {found.title}" if found.title else ""
    print_line((f"{found.kind} {found.id}", "bold"), f"{title}  ", (found.label, TONE_STYLES[found.tone]))


def _line(event: TimelineEvent) -> str:
    duration = "" if event.duration_ms is None else f"took {event.duration_ms:,} ms"
    worker = "" if event.worker is None else f"on {event.worker}"
    task = "" if event.task_id is None else f"task {event.task_id}"
    parts = (event.event, event.detail, worker, duration, task, event.error or "")
    return f"  {_time(event.at)}  {'  '.join(filter(None, parts))}"


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")
