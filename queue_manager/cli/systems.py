"""`queue-manager systems`: list systems, check a declaration before it is switched on, pause and resume.

`system_queries` has the commands that show their state.

Guarantee: `check` writes nothing, neither documents nor indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer
from bson import json_util

from beat_schedule import systems
from models import database
from models.database import Document
from models.document_id import shown_id
from models.due_documents import MAX_COUNT, DueCollection
from queue_manager import pauses
from queue_manager.cli.changes import PauseReason, checked_reason, current_actor, resumed
from queue_manager.cli.completion import complete_system
from queue_manager.cli.system_queries import SystemName, history, scans, schedule, state_text, status
from queue_manager.cli.terminal import print_line, print_pauses, print_rows
from queue_manager.core.clock import seconds, to_iso
from queue_manager.core.errors import ConfigurationError, typed_reason
from queue_manager.core.settings import settings
from queue_manager.core.wording import did_you_mean, first_ids, many
from queue_manager.operations import switches
from queue_manager.operations.systems import find_system
from queue_manager.pauses import PauseState
from queue_manager.system import System, declared, require_distinct
from services.due_documents import DueDocuments, work_of
from services.due_documents.work import DocumentWork

T = TypeVar("T")

SAMPLE = 10  # documents
MAX_NEVER_DUE = 1_000  # documents that are counted
DOCUMENTS_TIMEOUT = seconds(10)  # without the index, MongoDB scans the whole collection
JSON_OPTIONS = json_util.JSONOptions(json_mode=json_util.JSONMode.RELAXED)

systems_cli = typer.Typer(
    help="Show, check, pause and resume systems.\n\n"
    "A system is one kind of due work: its scan finds what is due and dispatches one Celery task per item. "
    "QM_SYSTEMS names the modules of your own systems; QM_DRY_RUN names systems that only count what is due.",
    no_args_is_help=True,
)

Target = Annotated[
    str,
    typer.Argument(
        help="A module that declares systems, or a name.", metavar="MODULE_OR_NAME", autocompletion=complete_system
    ),
]


@systems_cli.command("list")
def list_systems() -> None:
    """Show each system: on or off, period, queue and page."""
    paused = pauses.paused()
    rows = [
        {
            "name": system.name,
            "state": _state(system, paused),
            "period": f"{system.period(settings()).total_seconds():g} s",
            "queue": system.queue or "",
            "page": system.page,
        }
        for system in systems()
    ]
    print_rows(rows, nothing="no system")
    print_pauses(paused)


@systems_cli.command()
def check(target: Target) -> None:
    """Check a declaration, and show what its items would write.

    Writes nothing. Calls the function of the system for up to ten due documents, so side effects inside it do happen;
    `after` is not called. Each update is tried in a transaction that is rolled back. Exit code 1 if the function fails
    or an update is refused, 2 if the declaration is invalid.

    Example: `queue-manager systems check billing.trial_end`, also before QM_SYSTEMS names the module
    """
    from tasks.due_documents import task_of  # imported here, because it takes a second
    from tasks.systems import require_tasks

    errors, selected = 0, _selected(target)
    for system in selected:
        if isinstance(system, DueDocuments) and system not in systems():
            task_of(system)
    require_tasks(selected)
    for system in selected:
        print_line((system.name, "bold"), f"  {system.description}")
        if isinstance(system, DueDocuments):
            errors += _check_documents(system)
        else:
            _check_indexes(system)
    if errors:
        raise typer.Exit(1)


@systems_cli.command()
def pause(name: SystemName, reason: PauseReason = None) -> None:
    """Dispatch no items of a system until it is resumed.

    Items in flight finish. Manual retries and `function.delay(id)` still run.

    Example: `queue-manager systems pause support-snooze --reason "the mail provider is down"`
    """
    switches.pause_system(current_actor(), find_system(name), checked_reason(reason))
    print_line(f"{name}  paused")


@systems_cli.command()
def resume(name: SystemName) -> None:
    """Dispatch the items of a paused system again.

    Starts with its next scan. Also deletes the pause of a system that was removed or renamed.

    Example: `queue-manager systems resume support-snooze`
    """
    was_paused = switches.resume_system(current_actor(), name)
    print_line(f"{name}  {resumed(was_paused)}")


for _query in (status, scans, history, schedule):
    systems_cli.command()(_query)


# Output


def _state(system: System, paused: Mapping[str, PauseState]) -> str:
    idle = system.idle(settings(), is_paused=system.name in paused)
    return state_text(idle, is_on=system.is_on(settings()))


def _check_indexes(system: System) -> None:
    for collection, indexes in system.read_collections().items():
        present = database.collection(collection).index_information()
        for name in (index.document["name"] for index in indexes):
            _print_index(f"{collection}.{name}", is_present=name in present)


def _check_documents(system: DueDocuments) -> int:
    """Return the number of documents for which the function failed."""
    work = work_of(system)
    now = work.clock()
    stored = work.documents.stored_indexes()
    has_index = work.documents.index in stored
    _print_index(f"{work.documents.name}.{work.documents.index}", is_present=has_index)
    if _in_time(work.documents.has_dates) is False:
        _print_about("warning", (f"no document of {system.collection} has a date at {system.due}", "yellow"))
    if ids := _in_time(lambda: work.documents.never_due(limit=MAX_NEVER_DUE)):
        _print_about("warning", (_never_due(ids, system), "yellow"))
    used = _used_indexes(system)
    for unused in (name for name in stored if name not in used):
        _print_about("index", f"{work.documents.name}.{unused}  unused: drop it when all processes are restarted")
    _print_about("due now", _count(work.documents, now, has_index=has_index))
    documents = _in_time(lambda: work.documents.sample(now, system.fields, limit=SAMPLE))
    if documents is None:
        _print_about("updates", f"not shown: no documents found within {DOCUMENTS_TIMEOUT.total_seconds():g} s")
        return 0
    return sum(not _print_update(work, document, now) for document in documents)


def _never_due(ids: Sequence[Any], system: DueDocuments) -> str:
    number = many(len(ids), "document") + (" or more" if len(ids) == MAX_NEVER_DUE else "")
    shown = first_ids(map(shown_id, ids), len(ids))
    return f"never due, because {system.due} is not a date since 1970: {number} matching `where` ({shown})"


def _count(documents: DueCollection, now: datetime, *, has_index: bool) -> str:
    count = _in_time(lambda: documents.count(now) if has_index else documents.count_unindexed(now))
    if count is None:
        return f"not counted within {DOCUMENTS_TIMEOUT.total_seconds():g} s"
    return many(count, "document") + (" or more" if count == MAX_COUNT else "")


def _in_time(read: Callable[[], T]) -> T | None:
    """Return what `read` returns, `None` if it takes too long."""
    try:
        with database.within(DOCUMENTS_TIMEOUT):
            return read()
    except database.Error as error:
        if not error.timeout:
            raise
        return None


def _used_indexes(system: DueDocuments) -> set[str]:
    others = [one for one in systems() if isinstance(one, DueDocuments)]
    return {work_of(one).documents.index for one in (system, *others)}


def _print_index(name: str, *, is_present: bool) -> None:
    missing = ("missing: `queue-manager migrate` creates it, once QM_SYSTEMS names the module", "yellow")
    _print_about("index", f"{name}  ", ("exists", "green") if is_present else missing)


def _print_update(work: DocumentWork, document: Document, now: datetime) -> bool:
    """Print the update that a document would get; return False, and print the error, if there is none."""
    due = (f"due {to_iso(work.documents.due_at(document))}  ", "dim")
    try:
        update = json_util.dumps(work.preview(document, now=now), json_options=JSON_OPTIONS, ensure_ascii=False)
    except Exception as error:  # the function is the user's
        _print_about(shown_id(document["_id"]), due, (typed_reason(error), "red"))
        return False
    _print_about(shown_id(document["_id"]), due, (update, ""))
    return True


def _print_about(title: str, *parts: str | tuple[str, str]) -> None:
    print_line(f"  {title:<8}  ", *parts)


# Input and errors


def _selected(target: str) -> list[System]:
    """Return the systems of a module, or the one of this name. Raises ConfigurationError."""
    known = {system.name: system for system in systems()}
    if target in known:
        return [known[target]]
    if not all(part.isidentifier() for part in target.split(".")):
        raise ConfigurationError(
            f"{target!r} must be a module, or one of {', '.join(known)}{did_you_mean(target, known)}"
        )
    try:
        found = declared([target], setting="MODULE_OR_NAME")
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}{did_you_mean(target, known)}") from error
    require_distinct([*known.values(), *found])
    return found
