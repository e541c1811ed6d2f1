"""`queue-manager audit`: who changed what."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from models import audit
from models.audit import AUDITED_ACTIONS, ActionName, AuditEntry, AuditQuery
from queue_manager.cli.changes import current_actor
from queue_manager.cli.completion import complete_system
from queue_manager.cli.errors import fail, moment
from queue_manager.cli.terminal import AnswerJsonOption, CursorOption, print_answer, print_cursor, print_line
from queue_manager.core.clock import to_iso
from queue_manager.operations import audit as operations
from queue_manager.operations.audit import MAX_AUDIT_PAGE, AuditedChange, audit_page, one_change
from services.audit import changes_of

MAX_SHOWN_IDS = 3

audit_cli = typer.Typer(
    help="Show who changed what.\n\n"
    "Changes through the dashboard, the HTTP API and the command line are kept for QM_AUDIT_DAYS. Adding, receiving "
    "and acknowledging messages is not recorded.",
    invoke_without_command=True,
)


@audit_cli.callback()
def list_entries(
    context: typer.Context,
    who: Annotated[str | None, typer.Option(help="Only of this key, or of this user of the operating system.")] = None,
    action: Annotated[
        ActionName | None, typer.Option(help=f"Only this action: {', '.join(AUDITED_ACTIONS)}.", metavar="ACTION")
    ] = None,
    system: Annotated[str | None, typer.Option(help="Only of this system.", autocompletion=complete_system)] = None,
    id: Annotated[str | None, typer.Option(help="Only what was done to this item, message or job.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", "--from", help="From this time on, such as 2026-01-31T09:30Z.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", "--to", help="Up to this time.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_AUDIT_PAGE, help="Maximum number of entries.")] = 20,
    cursor: CursorOption = None,
    as_json: AnswerJsonOption = False,
) -> None:
    """Show who changed what, newest first. Times are UTC.

    Example: `queue-manager audit --who alice --action delete --since 2026-01-31T00:00Z`
    """
    if context.invoked_subcommand is not None:
        return
    times = {"since": moment(since, "--since"), "until": moment(until, "--until")}
    query = AuditQuery(who=who, action=action, system=system, id=id, **times)
    page = audit_page(query, cursor=cursor, limit=limit)
    if as_json:
        print_answer(page)
        return
    if not page.entries:
        print_line("no actions")
    for entry in page.entries:
        _print_entry(entry)
    print_cursor(page.cursor)


@audit_cli.command()
def show(
    id: Annotated[str, typer.Argument(help="The id of an entry.", metavar="ID")],
) -> None:
    """Print one entry as JSON, with all ids that are stored. Exit code 1 if there is none.

    Example: `queue-manager audit show 65a1b2c3d4e5f60718293a4b`
    """
    print_answer(one_change(_entry(id)))


@audit_cli.command("undo")
def undo_action(
    id: Annotated[str, typer.Argument(help="The id of an entry.", metavar="ID")],
) -> None:
    """Restore what an action has deleted, within 10 minutes. Exit code 1 if not all of it could be restored.

    Messages go to the end of their state. What exists again is left as it is.

    Example: `queue-manager audit undo 65a1b2c3d4e5f60718293a4b`
    """
    entry = _entry(id)
    result = operations.undo_action(entry, current_actor())
    print_line(result.message)
    if result.blocked or not result.is_complete:
        raise typer.Exit(1)


def _entry(id: str) -> AuditEntry:
    """Return an entry; end the command with exit code 1 if there is none."""
    found = audit.get(id)
    if found is None:
        fail(f"There is no entry {id} in the audit log", code=1)
    return found


def _print_entry(entry: AuditedChange) -> None:
    """Print an entry in a line, and in another one what was selected and changed."""
    count = "" if entry.count is None else f"{entry.count:,} changed"
    who = f"{entry.who} ({entry.via}, {entry.address})"
    first = (to_iso(entry.at), entry.id, entry.action, entry.system, entry.outcome, count, who)
    print_line("  ".join(filter(None, first)))
    if what := _what(entry):
        print_line(f"    {what}")


def _what(entry: AuditedChange) -> str:
    shown = entry.ids[:MAX_SHOWN_IDS]
    more = (entry.count or entry.total or 0) - len(shown)
    ids = ", ".join(shown) + (f" and {more:,} more" if more > 0 and shown else "")
    selected = "" if not entry.filter else json.dumps(entry.filter, ensure_ascii=False)
    changes = changes_of(entry.before, entry.after)
    return "; ".join(filter(None, [ids, selected, changes, entry.detail, entry.error]))
