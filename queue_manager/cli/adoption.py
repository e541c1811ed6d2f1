"""`queue-manager adopt`: take over the work of another program, system by system.

Guarantee: without `--yes` nothing is changed, and with it no document is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from beat_schedule import systems, warnings
from models import schema
from models.database import require_replica_set, rights_to_migrate
from queue_manager.cli.errors import fail, report_errors
from queue_manager.cli.messages_render import console, printable
from queue_manager.core.errors import reason
from queue_manager.core.redis_client import RedisError
from queue_manager.core.settings import redact_url, settings
from queue_manager.system import System
from services import adoption
from services.adoption import AdoptionPlan


def adopt(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Create the indexes; else only show what changes.")] = False,
) -> None:
    """Show what changes when the systems that are switched on take over the work of another program.

    For each system: the indexes to create, the writes of other programs that unique indexes refuse, what the other
    program has left, and the documents to repair first. `--yes` creates the indexes, like `queue-manager migrate`.
    Both programs may run meanwhile. Exit code 2 if documents violate an index.
    """
    if context.invoked_subcommand is not None:
        return
    screen = console()
    on = [system for system in systems() if system.is_switched_on(settings())]
    with report_errors():
        require_replica_set()
        plans = [(system, _plan(system)) for system in on]
    for system, plan in plans:
        _print_plan(screen, system, plan)
    for warning in warnings():
        screen.print(warning, soft_wrap=True)
    if not yes:
        typer.echo("Nothing was changed" + ("; add --yes to create the indexes" if on else ""))
        return
    with report_errors(), rights_to_migrate():
        typer.echo(f"{len(schema.migrate(on))} indexes are in place")


def _plan(system: System) -> AdoptionPlan:
    try:
        return adoption.plan(system)
    except RedisError as error:
        fail(f"Redis at {redact_url(settings().redis_url)} does not answer ({reason(error)})", code=1)


def _print_plan(screen: Console, system: System, plan: AdoptionPlan) -> None:
    screen.print(Text.assemble((system.name, "bold"), f"  {printable(system.description)}"), soft_wrap=True)
    _print_lines(screen, "creates", plan.missing_indexes or ["nothing: no index is missing"])
    _print_lines(screen, "refuses", plan.refused_writes)
    _print_lines(screen, "found", plan.notes)
    _print_lines(screen, "repair", plan.obstacles)


def _print_lines(screen: Console, title: str, lines: Sequence[str]) -> None:
    for line in lines:
        screen.print(Text.assemble((f"  {title:<9}", "dim"), printable(line)), soft_wrap=True)
