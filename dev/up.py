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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from dev import environment, lock, procfile
from dev.children import kill_all
from dev.embedded import EmbeddedServer
from dev.log_stream import LogStream
from dev.ports import LOOPBACK, free_port, is_answering
from dev.procfile import Process
from dev.servers import Mongo, Valkey
from dev.supervisor import Supervisor, describe
from queue_manager.core.errors import AppError, ConfigurationError
from queue_manager.core.settings import redact_url

MONGO_PORT, REDIS_PORT = 27017, 6379  # preferred: what their clients try by default
SITES = {"flower": ("Flower", "FLOWER_PORT", 5555), "web": ("Dashboard", "QM_WEB_PORT", 6002)}
"""What people open in a browser: by the name of the process, its title, the setting of its port, its usual port."""
SITES_TIMEOUT = 15.0  # seconds; the addresses are shown then at the latest
SUMMARY = Process("summary", "python -m dev.summary")
DEMO = Process("demo", "python -m dev.demo")
DEMO_WITHOUT_MESSAGES = Process(DEMO.name, f"{DEMO.command} --no-messages")


def main(*, demo: bool = True, root: Path) -> int:
    """Run the checkout at `root` until it is stopped; return the exit code.

    `demo` fills in live data, but never in a MongoDB or a message queue that the user named.
    """
    try:
        with _stop_signals():
            _run(root, demo=demo)
    except KeyboardInterrupt:
        _say_last("stopped")
    except (AppError, OSError) as error:
        print(f"make up: {error}", file=sys.stderr)
        return 1
    return 0


def _run(root: Path, *, demo: bool) -> None:
    listed = procfile.read(root / "Procfile")
    given = environment.given(root)
    processes = [*listed, SUMMARY]
    if demo:
        processes += demo_processes(given)
    data = _private_directory(root / ".devstack")
    with ExitStack() as stack:
        stack.enter_context(lock.exclusive(data))
        servers = _start_servers(stack, given, data)
        children = environment.for_children(
            given,
            mongo_url=given.get("MONGO_DB_URL") or servers["MongoDB"].url,
            redis_url=given.get("REDIS_URL") or servers["Valkey"].url,
            flower_port=_site_port("flower", given),
            web_port=_site_port("web", given),
        )
        log = LogStream(process.name for process in processes)
        lasting = [process for process in processes if process.name != procfile.RELEASE]
        supervisor = stack.enter_context(Supervisor(lasting, environment=children, root=root, log=log))
        _release(supervisor, listed)
        supervisor.start()
        sites = {title: int(children[setting]) for title, setting, _ in _sites_of(listed)}
        _wait_until_answering(sites.values())
        _print_addresses(children, sites)
        _keep_running(servers)


def demo_processes(given: Mapping[str, str]) -> list[Process]:
    """Return what fills in live data: never in a MongoDB or a message queue that the user named."""
    if "MONGO_DB_URL" in given:
        return []
    return [DEMO_WITHOUT_MESSAGES if environment.has_own_queue(given) else DEMO]


def _release(supervisor: Supervisor, listed: list[Process]) -> None:
    for process in listed:
        if process.name == procfile.RELEASE and (code := supervisor.run(process)) != 0:
            raise AppError(f"`{process.command}` {describe(code)}: nothing was started; see its output above")


def _start_servers(stack: ExitStack, given: Mapping[str, str], data: Path) -> dict[str, EmbeddedServer]:
    """Start the servers that the user did not name, by their names; `stack` stops them."""
    servers: dict[str, EmbeddedServer] = {}
    if "REDIS_URL" not in given:
        servers["Valkey"] = Valkey(data / "valkey", _port("Valkey", REDIS_PORT))
    if "MONGO_DB_URL" not in given:
        servers["MongoDB"] = Mongo(data / "mongodb", _port("MongoDB", MONGO_PORT))
    for name, server in servers.items():
        stack.callback(server.stop)
        _start(name, server)
    return servers


def _start(name: str, server: EmbeddedServer) -> None:
    print(f"{name}: starting", flush=True)
    began = time.monotonic()
    server.start()
    print(f"{name}: ready on port {server.port} after {time.monotonic() - began:.1f} s", flush=True)


def _keep_running(servers: Mapping[str, EmbeddedServer]) -> NoReturn:
    """Start again, until a signal, what was killed: on the same port, with the data it had."""
    while True:
        time.sleep(1)
        for name, server in servers.items():
            if not server.is_running:
                print(f"{name}: it ended", flush=True)
                _start(name, server)


def _sites_of(listed: list[Process]) -> list[tuple[str, str, int]]:
    return [SITES[process.name] for process in listed if process.name in SITES]


def _wait_until_answering(ports: Iterable[int]) -> None:
    """Wait for the last to be ready, so that the addresses stand below what the others say at their start."""
    deadline = time.monotonic() + SITES_TIMEOUT
    for port in ports:
        while not is_answering(port) and time.monotonic() < deadline:
            time.sleep(0.1)


def _port(name: str, preferred: int) -> int:
    port = free_port(preferred)
    if port != preferred:
        print(f"{name}: port {preferred} is busy, using {port}", flush=True)
    return port


def _site_port(process: str, given: Mapping[str, str]) -> int:
    title, setting, usual = SITES[process]
    wanted = given.get(setting, str(usual))
    if not wanted.isdecimal():
        raise ConfigurationError(f"{setting}={wanted!r}: accepted is a port number, such as {usual}")
    return _port(title, int(wanted))


def _private_directory(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    path.chmod(0o700)
    return path


def _print_addresses(children: environment.Environment, sites: Mapping[str, int]) -> None:
    addresses = Table.grid(padding=(0, 2))
    for title, port in sites.items():
        addresses.add_row(title, f"http://{children['FLOWER_ADDRESS'] if title == 'Flower' else LOOPBACK}:{port}")
    addresses.add_row("MongoDB", redact_url(children["MONGO_DB_URL"]))
    addresses.add_row("Redis", redact_url(children["REDIS_URL"]))
    console = Console(highlight=False)
    console.print(Panel(addresses, title="Queue Manager", subtitle="Ctrl-C stops everything", expand=False))


def _say_last(line: str) -> None:
    # Unbuffered, because a signal may have interrupted a print; and the terminal may be what has gone.
    with suppress(OSError):
        os.write(sys.stdout.fileno(), f"{line}\n".encode())


@contextmanager
def _stop_signals() -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into KeyboardInterrupt; a further one kills every child."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    is_stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping:
            kill_all()
            return
        is_stopping = True
        _say_last("stopping, in order; once more to stop at once")
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
