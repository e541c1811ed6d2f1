"""`queue-manager adopt`: bring the data of the applications that Queue Manager replaces into its own form.

Guarantee: without `--yes` nothing is changed. Text of applications reaches a terminal without control characters or
markup.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from queue_manager.cli.errors import report_errors
from queue_manager.cli.messages_render import console, printable
from services import job_queues
from services.job_queues import Adoption

adopt_cli = typer.Typer(
    help="Bring the data of earlier applications into the form of Queue Manager. Without `--yes`, only show what would "
    "change.",
    no_args_is_help=True,
)


@adopt_cli.command()
def jobs(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Adopt the jobs; else only show them.")] = False,
) -> None:
    """Adopt jobs that the JavaScript package stored in `jobs_data`: ids, names, arguments and due times stay.

    Stop the application that stored them first, or both run its jobs. Workers may run. An interrupted adoption is
    continued by the same command. Exit code 1 if documents were left as they are.
    """
    with report_errors():
        result = job_queues.adopt(is_dry_run=not yes)
        registered = job_queues.registry.names()
    _print(console(), result, registered)
    found = result.jobs.total()
    if yes:
        typer.echo(f"{result.adopted} adopted")
    elif found:
        typer.echo(
            f"{found} can be adopted; nothing was changed. Stop the application that stored them, then add --yes"
        )
    if result.refused or (yes and result.adopted < found):
        sys.exit(1)


def _print(screen: Console, result: Adoption, registered: list[str]) -> None:
    if result.jobs:
        screen.print(_table(result))
    elif not result.refused:
        screen.print("no document to adopt")
    if missing := sorted({name for name, _, _ in result.jobs} - {*registered}):
        screen.print(Text(f"no function is registered for {', '.join(missing)}: its jobs would fail"), soft_wrap=True)
    if result.refused:
        screen.print(f"{result.refused} cannot be adopted and stay as they are, such as")
        for id, reason in result.refusals.items():
            screen.print(Text(printable(f"  {id}  {reason}")), soft_wrap=True)


def _table(result: Adoption) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "stored as", "becomes"):
        table.add_column(title, overflow="fold")
    table.add_column("jobs", justify="right")
    for (name, stored, state), count in sorted(result.jobs.items()):
        table.add_row(name, Text(printable(stored)), state.value, str(count))
    return table
