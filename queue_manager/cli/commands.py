"""The `queue-manager` command: migrate, scan, web, health, and the command groups."""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from beat_schedule import SYSTEMS, systems
from models import index_builds, mark, schema
from models.database import require_replica_set
from queue_manager.cli.changes import audited, current_actor
from queue_manager.cli.completion import complete_system
from queue_manager.cli.errors import fail, report_errors
from queue_manager.cli.terminal import print_line
from queue_manager.core import log as logging
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.process import end_at_sigterm
from queue_manager.core.server_check import until_reachable
from queue_manager.core.settings import settings
from queue_manager.health.report import Health, health
from queue_manager.health_rules import CRITICAL
from queue_manager.operations import systems as operations
from queue_manager.server_calls import redis_server
from queue_manager.telemetry import worker_heartbeats

HostOption = Annotated[str, typer.Option(help="Address of the web process; other than loopback needs QM_API_KEYS.")]
PortOption = Annotated[
    int | None, typer.Option(min=1, max=65_535, help="Port of the web process; default: the setting QM_WEB_PORT.")
]

PAGE_WORDS = {"pending": "due", "cooling_off": "failed", "dead": "failed"}
"""The words of the pages for numbers of systems whose names differ."""

OTHERS = {
    "start": "queue_manager.cli.start:start",
    "doctor": "queue_manager.cli.doctor:doctor",
    "why": "queue_manager.cli.why:why",
    "workers": "queue_manager.cli.workers:workers",
    "keys": "queue_manager.cli.keys:keys",
    "systems": "queue_manager.cli.systems:systems_cli",
    "items": "queue_manager.cli.items:items_cli",
    "queue": "queue_manager.cli.messages:queue",
    "jobs": "queue_manager.cli.jobs:jobs",
    "dead-letters": "queue_manager.cli.dead_letters:dead_letters_cli",
    "failures": "queue_manager.cli.failures:failures_cli",
    "adopt": "queue_manager.cli.adopt:adopt_cli",
    "alerts": "queue_manager.cli.alerts:alerts_cli",
    "audit": "queue_manager.cli.audit:audit_cli",
}
"""The commands and groups of other modules, which are imported when they are needed."""


class LazyCommands(UserDict[str, Any]):
    """Commands by name. A text `module:name` is replaced by the command that it names at the first use."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            self[name] = found = _command(name, getattr(import_module(module), attribute))
        return found


def _command(name: str, found: typer.Typer | Callable[..., Any]) -> Any:
    parent = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name)(found)
    return typer.main.get_group(parent).commands[name]


class Commands(TyperGroup):
    """The commands, whose errors are reported in one line."""

    def __init__(self, *, commands: dict[str, Any], **options: Any) -> None:
        found: Any = LazyCommands({**commands, **OTHERS})
        super().__init__(commands=found, **options)

    def invoke(self, ctx: Any) -> Any:
        try:
            with report_errors():
                return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # of the validator
            raise


cli = typer.Typer(
    cls=Commands,
    help="Run and operate Queue Manager: scans, items, the message queue, job queues, the dashboard.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # which fills lines, and shows no type for a flag
)
log = logging.get_logger("QM/cli")
NAMES = ", ".join(system.name for system in SYSTEMS)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"queue-manager {version('queue-manager')}")
        raise typer.Exit


@cli.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself."""


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
    """Create the missing indexes of all systems that are on.

    Idempotent; waits until MongoDB is reachable. Other programs may read and write while an index is built; the
    progress of a large one is logged. If documents violate an index, or a collection cannot have it, lists them and the
    systems that were not migrated, migrates the other systems, and exits with 2.

    Example: `queue-manager migrate`
    """
    logging.configure(level=settings().qm_log_level, form=settings().qm_log_format)
    end_at_sigterm()
    url = settings().mongo_db_url
    until_reachable(require_replica_set, server="MongoDB", url=url, log=log)
    on = [system for system in systems() if system.is_switched_on(settings())]
    if finish and not on:
        raise ConfigurationError(
            "No system is switched on here, so nothing would be removed: run it with the settings of the processes"
        )
    if finish:
        _refuse_other_releases()
    try:
        with schema.rights_to_migrate():
            with audited("migrate", detail="--finish" if finish else "") as action:
                with index_builds.reported(lambda build: log.info(f"Building {build}")):
                    # The driver does not repeat a build that a primary interrupted when it stepped down.
                    created = until_reachable(partial(schema.migrate, on), server="MongoDB", url=url, log=log)
                    _log_indexes(created)
                if finish:
                    finished = partial(schema.finish, on)
                    action.count = until_reachable(finished, server="MongoDB", url=url, log=log)
                    log.info("Indexes and claims of earlier releases are removed", claims=action.count)
    except schema.Obstructed as error:
        _log_indexes(error.indexes)
        raise


def _refuse_other_releases() -> None:
    """Raise ConfigurationError while a worker of another release is online, Unavailable if Redis does not answer."""
    with redis_server() as client:
        online = worker_heartbeats.online(client)
    others = [worker.name for worker in online if worker.release != worker_heartbeats.OWN_RELEASE]
    if others:
        raise ConfigurationError(
            f"Nothing was changed, because workers of another release are online: stop {', '.join(others)} first"
        )


def _log_indexes(names: Sequence[str]) -> None:
    log.info(f"{len(names)} indexes are in place")
    log.debug("Indexes", names=", ".join(names))


@cli.command()
def scan(
    name: Annotated[
        str,
        typer.Argument(
            help=f"Which scan to run now: {NAMES}, or one of QM_SYSTEMS.",
            metavar="NAME",
            autocompletion=complete_system,
        ),
    ],
) -> None:
    """Run one scan in this process, and print its result as JSON.

    Workers execute the items that it dispatches.

    Example: `queue-manager scan support-snooze`
    """
    system = operations.find_system(name)
    from tasks import app  # imported here, because it takes a second
    from tasks.systems import require_tasks

    logging.configure(level=settings().qm_log_level, form=settings().qm_log_format)
    require_tasks([system])
    require_replica_set()
    with audited("scan", system=name) as action:
        run = app.tasks[system.scan_task]()
        action.count = run.get("enqueued")
    typer.echo(json.dumps(run))


@cli.command()
def web(
    host: HostOption = "127.0.0.1",
    port: PortOption = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1, max=64, help="Processes that share the port; with several, Socket.IO clients must use WebSocket."
        ),
    ] = 1,
) -> None:
    """Serve the dashboard and the HTTP API, until Ctrl-C.

    Also serves Socket.IO, probes and metrics.

    Example: `queue-manager web --host 0.0.0.0 --port 6002 --workers 2`
    """
    from queue_manager.web.serve import serve  # imported here, because only this command needs it

    serve(host=host, port=port or settings().qm_web_port, workers=workers)


@cli.command("mark")
def add_mark(text: Annotated[str, typer.Argument(help='What happened, such as "v1.4".', metavar="TEXT")]) -> None:
    """Annotate the charts at the current time.

    For example, after a deployment.

    Example: `queue-manager mark "v1.4"`
    """
    if not 1 <= len(text) <= mark.MAX_TEXT_LENGTH:
        fail(f"the text must have 1 to {mark.MAX_TEXT_LENGTH} characters", code=2)
    operations.add_mark(text, current_actor())
    print_line(f"marked  {text}")


@cli.command("health")
def show_health(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show servers, leader, last scans and systems. Exit code 1 if there is a problem.

    Example: `queue-manager health --json`
    """
    state = health()
    if as_json:
        typer.echo(state.model_dump_json(indent=2))
    else:
        _print_health(state)
    if state.problems:
        raise typer.Exit(1)


def _print_health(state: Health) -> None:
    print_line(f"MongoDB  {state.mongodb}")
    print_line(f"Redis    {state.redis}")
    if state.broker != state.redis:
        print_line(f"Broker   {state.broker}")
    if state.leader is not None:
        leader = state.leader
        print_line(
            f"Leader   {leader['host']}:{leader['pid']} since {leader['since']}, epoch {leader['epoch']}, "
            f"lease ends in {leader['lease_left']} s"
        )
        print_line()
    for name, run in state.scans.items():
        print_line(f"Last scan of {name}  {_line(run) if run else 'none in 24 hours'}")
    for name, numbers in state.systems.items():
        print_line(f"{name}  {_line(numbers)}")
    for detail in state.details:
        print_line(f"  {detail}")
    for problem in state.problems:
        severity = (f"{problem.severity:<8}", "bold red" if problem.severity == CRITICAL else "bold yellow")
        print_line(severity, f"  {problem.system}, {problem.rule.id}: {problem.text}")
        print_line(f"          {problem.action}")
    if not state.problems:
        print_line(("no problems", "green"))


def _line(stats: Mapping[str, Any]) -> str:
    shown = {_word(name, stats): value for name, value in stats.items() if name != "scan"}
    return "  ".join(f"{word} {value}" for word, value in shown.items())


def _word(name: str, stats: Mapping[str, Any]) -> str:
    """Return the word of the pages for a number. The `failed` of job queues are jobs, not queues."""
    if name == "cooling_off" and "failed" in stats:
        return "cooling down"
    return PAGE_WORDS.get(name, name.replace("_", " "))
