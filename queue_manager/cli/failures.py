"""`queue-manager failures`: failures of all kinds, grouped by what failed and why, and replayed by the group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from beat_schedule import systems
from queue_manager.cli.changes import YesOption, confirm, current_actor
from queue_manager.cli.completion import complete_system
from queue_manager.cli.terminal import AnswerJsonOption, print_answer, print_line
from queue_manager.core.clock import to_iso
from queue_manager.operations import failures as operations
from queue_manager.operations.failures import GroupedFailures
from services.failures import FailureList, read_failures
from services.message_queue.explanation import reason_text

failures_cli = typer.Typer(
    help="Show failures, grouped by reason; replay a group.\n\n"
    "Failures are failed messages, items and jobs, and dead letters of the broker.",
    invoke_without_command=True,
)


@failures_cli.callback()
def list_groups(
    context: typer.Context,
    system: Annotated[
        str | None, typer.Option(help="Only of this system, or `broker`.", autocompletion=complete_system)
    ] = None,
    search: Annotated[str | None, typer.Option(help="Only with this text in the name or the reason.")] = None,
    as_json: AnswerJsonOption = False,
) -> None:
    """Show the groups, those with the most failures first. Exit code 1 if a list could not be read. Times are UTC."""
    if context.invoked_subcommand is not None:
        return
    found = operations.grouped(read_failures(systems()), system=system, search=search)
    lists = [part for part in found.lists if system in (None, part.system)]
    if as_json:
        print_answer(found)
    else:
        _print(found, lists, search)
    if any(part.problem for part in lists):
        raise typer.Exit(1)


def _print(found: GroupedFailures, lists: Sequence[FailureList], search: str | None) -> None:
    if not found.groups:
        what = "no failures" if search is None else "no failures with this text"
        titles = [part.title for part in lists if part.problem is None]
        print_line(f"{what} in {', '.join(titles) or 'the lists that could be read'}")
    for one in found.groups:
        times = f"{to_iso(one.first_at)} to {to_iso(one.last_at)}"
        print_line(f"{one.id}  {one.count:,}  {one.system}  {one.name}  {times}")
        print_line(f"    {reason_text(one.reason)}")
    if found.of > len(found.groups):
        print_line(f"{len(found.groups)} of {found.of:,} groups; use --system or --search to see others")
    for part in lists:
        if not part.is_complete:
            why = part.problem or f"only the newest {part.read:,} failures are counted"
            print_line(f"{part.title}: {why}")


@failures_cli.command()
def replay(
    group: Annotated[str, typer.Argument(help="The id of a group.", metavar="GROUP")],
    yes: YesOption = False,
) -> None:
    """Replay or retry the failures of a group.

    Asks for confirmation with their number. Those that fail after the question are left alone. Exit code 1 if not all
    were replayed.

    Example: `queue-manager failures replay 3f2a9c01d4e5`
    """
    from tasks.systems import require_tasks  # imported here, because it takes a second

    require_tasks()  # they dispatch the items
    found, is_complete = operations.find_group(group)
    ids = found.until(None)
    confirm("replay", len(ids), "failure", f" of {found.name}: {found.reason}", yes=yes)
    replayed, _ = operations.replay(found, ids, current_actor(), is_over=lambda: False)
    print_line(f"{replayed} of {len(ids)} replayed")
    if not is_complete:
        typer.echo("there may be more: run the command again", err=True)
    if replayed != len(ids):
        raise typer.Exit(1)
