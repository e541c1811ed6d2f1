"""The `queue-manager` command: migrate, scan, web, health, and the command groups."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import redis
import typer
from rich.console import Console
from rich.markup import escape

from beat_schedule import SYSTEMS, systems
from models import schema
from models.database import OUTAGES, require_replica_set, rights_to_migrate
from queue_manager.cli.adopt import adopt_cli
from queue_manager.cli.dead_letters import dead_letters_cli
from queue_manager.cli.errors import fail
from queue_manager.cli.jobs import jobs
from queue_manager.cli.messages import queue
from queue_manager.cli.systems import systems_cli
from queue_manager.core import log as logging
from queue_manager.core.errors import AppError, ConfigurationError, reason
from queue_manager.core.redis_client import connect
from queue_manager.core.server_check import until_reachable
from queue_manager.core.settings import redact_url, settings
from queue_manager.health import Health, health
from queue_manager.telemetry import worker_heartbeats

cli = typer.Typer(
    help="Finds what is due in MongoDB and acts on it, once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cli.add_typer(systems_cli, name="systems")
cli.add_typer(queue, name="queue")
cli.add_typer(jobs, name="jobs")
cli.add_typer(dead_letters_cli, name="dead-letters")
cli.add_typer(adopt_cli, name="adopt")
log = logging.get_logger("QM/cli")
NAMES = ", ".join(system.name for system in SYSTEMS)


@cli.command()
def migrate(
    finish: Annotated[
        bool,
        typer.Option(
            "--finish",
            help="Also remove indexes and fields of earlier releases, unless a worker of such a release is online.",
        ),
    ] = False,
) -> None:
    """Create the missing indexes of the systems that are switched on.

    Idempotent; waits until MongoDB is reachable. Exit code 2 if documents violate an index: lists them and the systems
    that were not migrated; the others are.
    """
    logging.configure(level=settings().qm_log_level, form=settings().qm_log_format)
    url = settings().mongo_db_url
    until_reachable(require_replica_set, server="MongoDB", url=url, errors=OUTAGES, log=log)
    on = [system for system in systems() if system.is_switched_on(settings())]
    if finish:
        _refuse_old_workers()
    try:
        with rights_to_migrate():
            _log_indexes(schema.migrate(on))
            if finish:
                log.info("Indexes and claims of earlier releases are removed", claims=schema.finish(on))
    except schema.Obstructed as error:
        _log_indexes(error.indexes)
        raise


def _refuse_old_workers() -> None:
    """Raise ConfigurationError while a worker of an older release is online."""
    try:
        with connect(settings().redis_url) as client:
            old = [worker.name for worker in worker_heartbeats.online(client) if worker.release is None]
    except redis.RedisError as error:
        fail(
            f"Redis at {redact_url(settings().redis_url)} does not answer: no list of workers ({reason(error)})",
            code=1,
        )
    if old:
        raise ConfigurationError(
            f"Nothing was changed, because workers of an older release are online: stop {', '.join(old)} first"
        )


def _log_indexes(names: Sequence[str]) -> None:
    log.info(f"{len(names)} indexes are in place")
    log.debug("Indexes", names=", ".join(names))


@cli.command()
def scan(name: Annotated[str, typer.Argument(help=f"Which scan to run now: {NAMES}, or one of QM_SYSTEMS.")]) -> None:
    """Run one scan now, in this process, and print its result as JSON; workers execute the items."""
    scans = {system.name: system.scan_task for system in systems()}
    if name not in scans:
        fail(f"there is no scan {name!r}; the scans are: {', '.join(scans)}", code=2)
    from tasks import app  # imported here, because it takes a second

    logging.configure(level=settings().qm_log_level, form=settings().qm_log_format)
    app.loader.import_default_modules()
    try:
        require_replica_set()
        run = app.tasks[scans[name]]()
    except (AppError, *OUTAGES) as error:
        fail(reason(error), code=1)
    typer.echo(json.dumps(run))


@cli.command()
def web(
    host: Annotated[str, typer.Option(help="Address; other than loopback needs QM_API_KEYS.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="QM_WEB_PORT", min=1, max=65_535)] = 6002,
) -> None:
    """Serve the dashboard, the API, Socket.IO, probes and metrics, until Ctrl-C."""
    from queue_manager.web.serve import serve  # imported here, because only this command needs it

    serve(host=host, port=port)


@cli.command("health")
def show_health(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show servers, leader, last scans and systems. Exit code 1 if there is a problem."""
    state = health()
    if as_json:
        typer.echo(json.dumps(state.as_dict(), indent=2))
    else:
        _print_health(Console(soft_wrap=True), state)
    sys.exit(1 if state.problems else 0)


def _print_health(console: Console, state: Health) -> None:
    console.print(f"MongoDB  {state.mongodb}\nRedis    {state.redis}", highlight=False)
    if state.broker != state.redis:
        console.print(f"Broker   {state.broker}", highlight=False)
    if state.leader is not None:
        leader = state.leader
        console.print(
            f"Leader   {leader['host']}:{leader['pid']} since {leader['since']}, epoch {leader['epoch']}, "
            f"lease left {leader['lease_left']} s\n",
            highlight=False,
        )
    for name, run in state.scans.items():
        console.print(f"Last scan of {name}  {_line(run) if run else 'none in 24 hours'}", highlight=False)
    for name, numbers in state.systems.items():
        console.print(f"{name}  {_line(numbers)}", highlight=False)
    for detail in state.details:
        console.print(f"  {escape(detail)}", highlight=False)
    for problem in state.problems:
        console.print(f"[bold red]problem[/]  {escape(problem)}", highlight=False)
    if not state.problems:
        console.print("[green]all is well[/]")


def _line(stats: Mapping[str, Any]) -> str:
    return "  ".join(f"{name.replace('_', ' ')} {value}" for name, value in stats.items() if name != "scan")
