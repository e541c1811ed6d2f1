"""`queue-manager adopt`: continue the work and the data of another program.

Guarantee: without `--yes` nothing is changed, and only `adopt jobs` changes documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from beat_schedule import systems, warnings
from models import index_builds, schema
from models.database import require_replica_set
from queue_manager.cli.changes import audited
from queue_manager.cli.errors import fail
from queue_manager.cli.terminal import print_line, print_rows
from queue_manager.core.redis_client import RedisError, describe_outage
from queue_manager.core.settings import settings
from queue_manager.system import System
from services import adoption, job_queues
from services.adoption import AdoptionPlan
from services.job_queues import Adoption

adopt_cli = typer.Typer()


@adopt_cli.callback(invoke_without_command=True)
def adopt(
    context: typer.Context,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Create the indexes. Without it: show what would change.")
    ] = False,
) -> None:
    """Show what changes if you continue another program's work.

    For each system that is switched on: the indexes to create, the writes of other programs that unique indexes refuse,
    what the other program has left, the effects on it while both run, what to do next, and the documents to repair
    first. `--yes` creates the indexes, like `queue-manager migrate`. Both programs may run meanwhile. Exit code 2 if
    documents violate an index.
    """
    if context.invoked_subcommand is not None:
        return
    on = [system for system in systems() if system.is_switched_on(settings())]
    require_replica_set()
    plans = [(system, _plan(system)) for system in on]
    for system, plan in plans:
        _print_plan(system, plan)
    for warning in warnings():
        print_line(warning)
    if not yes:
        print_line("Nothing was changed" + ("; add --yes to create the indexes" if on else ""))
        return
    with schema.rights_to_migrate(), index_builds.reported(lambda build: print_line(f"Building {build}")):
        with audited("adopt"):
            created = schema.migrate(on)
    print_line(f"{len(created)} indexes are in place")


def _plan(system: System) -> AdoptionPlan:
    try:
        return adoption.plan(system)
    except RedisError as error:
        fail(describe_outage(settings().redis_url, error), code=1)


def _print_plan(system: System, plan: AdoptionPlan) -> None:
    print_line((system.name, "bold"), f"  {system.description}")
    _print_lines("creates", plan.missing_indexes or ["nothing: no index is missing"])
    _print_lines("refuses", plan.refused_writes)
    _print_lines("found", plan.notes)
    _print_lines("effects", plan.effects)
    _print_lines("next", plan.steps)
    _print_lines("repair", plan.obstacles)


def _print_lines(title: str, lines: Sequence[str]) -> None:
    for line in lines:
        print_line((f"  {title:<9}", "dim"), line)


@adopt_cli.command()
def jobs(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only jobs of these names; by default of all.", metavar="NAME")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Adopt the jobs. Without it: only show them.")] = False,
) -> None:
    """Adopt the jobs that the JavaScript package has stored.

    They stay in `jobs_data`, with their ids, names, arguments and due times.

    Stop the application that stored them first, or have it no longer register these names; otherwise both run its jobs.
    Workers may run. An interrupted adoption is continued by the same command. Exit code 1 if documents of these names
    were left as they are.

    Example: `queue-manager adopt jobs send_invoice --yes`
    """
    registered = job_queues.registry.names()
    if yes:
        selected = {"names": ", ".join(names)} if names else None
        with audited("adopt", system=job_queues.system.name, filter=selected) as action:

            def count(adopted: Adoption) -> None:
                action.count = adopted.adopted

            result = job_queues.adopt(names or (), is_dry_run=False, on_batch=count)
    else:
        result = job_queues.adopt(names or (), is_dry_run=True)
    _print_adoption(result, registered)
    found = result.jobs.total()
    if yes:
        print_line(f"{result.adopted} adopted")
    elif found:
        print_line(
            f"{found} can be adopted; nothing was changed. Stop the application that stored them, then add --yes"
        )
    if result.rejected or (yes and result.adopted < found):
        raise typer.Exit(1)


def _print_adoption(result: Adoption, registered: list[str]) -> None:
    if result.jobs or not result.rejected:
        rows = [
            {"name": name, "stored as": stored, "becomes": state.value, "jobs": str(count)}
            for (name, stored, state), count in sorted(result.jobs.items())
        ]
        print_rows(rows, nothing="no document to adopt", numbers=["jobs"])
    if missing := sorted({name for name, _, _ in result.jobs} - {*registered}):
        print_line(f"no function is registered for {', '.join(missing)}: its jobs would fail")
    if result.rejected:
        print_line(f"{result.rejected} cannot be adopted and stay as they are, such as")
        for id, reason in result.rejection_reasons.items():
            print_line(f"  {id}  {reason}")
