"""`make up`: servers, the Procfile's processes and a live demo, from one command until Ctrl-C.

Guarantee: Ctrl-C, SIGTERM or a closed terminal ends everything in order, processes before servers, within
10 s; a second Ctrl-C ends it at once. Data stays in `.devstack/` of the checkout, readable by its owner
alone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from queue_manager.core.errors import AppError
from queue_manager.core.settings import masked
from queue_manager.devstack import environment, lock, procfile
from queue_manager.devstack.children import kill_all
from queue_manager.devstack.embedded import EmbeddedServer
from queue_manager.devstack.log_stream import LogStream
from queue_manager.devstack.ports import free_port
from queue_manager.devstack.procfile import Process
from queue_manager.devstack.servers import Mongo, Valkey
from queue_manager.devstack.supervisor import Supervisor, describe

MONGO_PORT, REDIS_PORT, FLOWER_PORT = 27017, 6379, 5555  # preferred: what their clients try by default
SUMMARY = Process("summary", "python -m queue_manager.devstack.summary")
DEMO = Process("demo", "python -m queue_manager.devstack.demo")


def main(*, demo: bool = True, root: Path) -> int:
    """Run the checkout at `root` until it is stopped; return the exit code.

    `demo` fills in live data, but never in a MongoDB that the user named.
    """
    try:
        with _stop_signals():
            return _run(root, demo=demo)
    except KeyboardInterrupt:
        print("stopped", flush=True)
        return 0
    except AppError as error:
        print(f"queue-manager up: {error}", file=sys.stderr)
        return 1


def _run(root: Path, *, demo: bool) -> int:
    listed = procfile.read(root / "Procfile")
    given = environment.given(root)
    processes = [*listed, SUMMARY]
    if demo and "MONGO_DB_URL" not in given:
        processes.append(DEMO)
    with ExitStack() as stack:
        data = _private_directory(root / ".devstack")
        stack.enter_context(lock.exclusive(data))
        redis_url = given.get("REDIS_URL") or _start(stack, Valkey, data / "valkey", REDIS_PORT).url
        mongo_url = given.get("MONGO_DB_URL") or _start(stack, Mongo, data / "mongodb", MONGO_PORT).url
        flower_port = _port("Flower", int(given.get("FLOWER_PORT", FLOWER_PORT)))
        children = environment.for_children(
            given, mongo_url=mongo_url, redis_url=redis_url, flower_port=flower_port
        )
        log = LogStream(process.name for process in processes)
        lasting = [process for process in processes if process.name != procfile.RELEASE]
        supervisor = stack.enter_context(Supervisor(lasting, environment=children, root=root, log=log))
        _release(supervisor, listed)
        supervisor.start()
        _print_addresses(children)
        Event().wait()  # until a signal
    return 0


def _release(supervisor: Supervisor, listed: list[Process]) -> None:
    for process in listed:
        if process.name == procfile.RELEASE and (code := supervisor.run(process)) != 0:
            raise AppError(f"`{process.command}` {describe(code)}: nothing was started; see its output above")


def _start(
    stack: ExitStack, kind: type[Valkey] | type[Mongo], directory: Path, preferred: int
) -> EmbeddedServer:
    name = kind.program.name
    server = kind(directory, _port(name, preferred))
    began = time.monotonic()
    print(f"{name}: starting", flush=True)
    stack.enter_context(server)
    print(f"{name}: ready on port {server.port} after {time.monotonic() - began:.1f} s", flush=True)
    return server


def _port(name: str, preferred: int) -> int:
    port = free_port(preferred)
    if port != preferred:
        print(f"{name}: port {preferred} is busy, using {port}", flush=True)
    return port


def _private_directory(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    path.chmod(0o700)
    return path


def _print_addresses(children: environment.Environment) -> None:
    addresses = Table.grid(padding=(0, 2))
    addresses.add_row("Flower", f"http://{children['FLOWER_ADDRESS']}:{children['FLOWER_PORT']}")
    addresses.add_row("MongoDB", masked(children["MONGO_DB_URL"]))
    addresses.add_row("Redis", masked(children["REDIS_URL"]))
    console = Console(highlight=False)
    console.print(Panel(addresses, title="Queue Manager", subtitle="Ctrl-C stops everything", expand=False))


@contextmanager
def _stop_signals() -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into KeyboardInterrupt; a further one kills every child."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    is_stopping = False

    def stop(number: int, frame: FrameType | None) -> Any:
        nonlocal is_stopping
        if is_stopping:
            kill_all()
            return
        is_stopping = True
        os.write(sys.stdout.fileno(), b"stopping, in order; once more to stop at once\n")
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
