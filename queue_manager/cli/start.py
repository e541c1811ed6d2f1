"""`queue-manager start`: the processes of the Procfile, forked from one that has imported what they share."""

from __future__ import annotations

import os
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import click
import typer

from queue_manager.cli.commands import HostOption, PortOption
from queue_manager.cli.errors import fail
from queue_manager.core import log as logging
from queue_manager.core.child_processes import ChildProcesses
from queue_manager.core.settings import settings

PROCESSES = {
    "worker": "celery -A tasks worker --hostname worker@%h --exclude-queues scans,jobs --prefetch-multiplier 1500 "
    "--task-events",
    "jobs": "celery -A tasks worker --hostname jobs@%h --queues jobs --prefetch-multiplier 1 --task-events",
    "scans": "celery -A tasks worker --hostname scans@%h --queues scans --pool threads --concurrency 2 --task-events",
    "beat": "celery -A tasks beat",
    "flower": "celery -A tasks flower --address=127.0.0.1 --max-tasks=10000",
    "web": "queue-manager web",
}
"""As in the Procfile."""
SHARED = (
    *("celery.app.amqp", "celery.app.control", "celery.app.log", "celery.apps.beat", "celery.apps.worker"),
    *("celery.bin.beat", "celery.bin.worker", "celery.concurrency.prefork", "celery.concurrency.thread"),
    *("celery.worker.components", "celery.worker.consumer", "celery.worker.strategy"),
    *("flower.command", "tornado.platform.asyncio"),
    *("queue_manager.batching.eta", "queue_manager.batching.events", "queue_manager.batching.pool"),
    *("queue_manager.batching.strategy", "queue_manager.beat.scheduler", "queue_manager.broker.transport"),
    "queue_manager.web.serve",
)
"""What the programs import when they need it."""


def start(
    without: Annotated[
        list[str] | None, typer.Option(help="Leave out a process; may be repeated.", metavar="NAME")
    ] = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = None,
) -> None:
    """Start all processes on this machine, until Ctrl-C.

    Run `queue-manager migrate` first. The processes are those of the Procfile: worker, jobs, scans, beat, flower and
    web. They are forked from one process, so they take two thirds of the memory of separate programs. A process that
    ends is replaced. Log lines begin with the name of their process; in JSON, it is the field `process`.

    Example: `queue-manager start --without flower`
    """
    for unknown in {*(without or ())} - PROCESSES.keys():
        fail(f"--without {unknown}: must be one of {', '.join(PROCESSES)}", code=2)
    names = [name for name in PROCESSES if name not in (without or ())]
    if not names:
        fail("--without: no process is left", code=2)
    _configure_logging()
    _import_shared()
    if (name := ChildProcesses(names, fatal_code=2).run()) is not None:
        os.environ[logging.PROCESS_NAME_VARIABLE] = name
        _configure_logging()  # with this name
        web_port = port or settings().qm_web_port
        _become(PROCESSES[name], *(["--host", host, "--port", str(web_port)] if name == "web" else []))


def _configure_logging() -> None:
    logging.configure(level=settings().qm_log_level, form=settings().qm_log_format)


def _import_shared() -> None:
    from queue_manager.worker.lifecycle import prepare_to_fork  # imported here, because it takes a second
    from tasks import app

    for module in SHARED:
        import_module(module)
    app.loader.import_default_modules()
    app.finalize()
    prepare_to_fork()


def _become(command: str, *options: str) -> None:
    """Run a command in this process."""
    program, *arguments = [*shlex.split(command), *options]
    # With its path, because Celery executes it again at SIGHUP.
    sys.argv = [str(Path(sys.executable).with_name(program)), *arguments]
    if program == "celery":
        _run_celery(arguments)
    else:
        from queue_manager.cli import main

        main()


def _run_celery(arguments: list[str]) -> None:
    """Run the command `celery` without those of its commands that are not used here: their shell takes 6 MB."""
    from celery.bin.base import CLIContext
    from celery.bin.beat import beat
    from celery.bin.worker import worker
    from flower.command import flower

    from tasks import app

    context = CLIContext(app=app, no_color="NO_COLOR" in os.environ, workdir=None)
    celery = click.Group(params=[click.Option(["-A"], expose_value=False)], commands=[worker, beat, flower])
    celery.main(arguments, obj=context, auto_envvar_prefix="CELERY")
