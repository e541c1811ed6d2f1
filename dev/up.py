"""`make up`: servers, the Procfile's processes and a live demo, from one command until Ctrl-C.

Guarantee: Ctrl-C, SIGTERM or a closed terminal ends everything in order, processes before servers, within
10 s; a second Ctrl-C ends it at once. Data stays in `.devstack/` of the checkout, readable by its owner
alone, next to the logs of the last run and the file `env`, which gives a shell the settings of the processes.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from dev import environment, lock, procfile
from dev.children import kill_all
from dev.display import AllLogs, Display, RunLog, Screen, say
from dev.embedded_server import EmbeddedServer
from dev.output import LogFiles
from dev.ports import LOOPBACK, free_port, is_answering
from dev.processes import describe
from dev.procfile import Process
from dev.recording import HEIGHT, recorded
from dev.run_status import RunStatus
from dev.servers import Mongo, Valkey
from dev.supervisor import Supervisor
from queue_manager.core.errors import AppError, ConfigurationError
from queue_manager.core.settings import redact_url

DATA = ".devstack"
SHELL_FILE = f"{DATA}/env"
MAX_PORT = 65_535
MONGO_PORT, REDIS_PORT = 27017, 6379  # preferred: what their clients try by default
SITES = {"flower": ("Flower", "FLOWER_PORT", 5555), "web": ("Dashboard", "QM_WEB_PORT", 6002)}
"""What people open in a browser: by the name of the process, its title, the setting of its port, its usual port."""
SITES_TIMEOUT = 15.0  # seconds; the addresses are shown then at the latest
RECORDED_FOR = 30.0  # seconds after everything answers
SUMMARY = Process("summary", "python -m dev.summary")
DEMO = Process("demo", "python -m dev.demo")
DEMO_WITHOUT_MESSAGES = Process(DEMO.name, f"{DEMO.command} --no-messages")


def main(*, demo: bool = True, logs: bool = False, root: Path, record: Path | None = None) -> int:
    """Run the checkout at `root` until it is stopped; return the exit code.

    `demo` fills in live data, but never in a MongoDB or a message queue that the user named. `logs` shows all output.
    With `record`, stop after a while, and save what the screen showed as an SVG file.
    """
    run = RunStatus(logs=f"{DATA}/logs")
    display = _display(run, logs=logs)
    try:
        with _stop_signals(display), ExitStack() as stack:
            stack.callback(display.close)
            display.open()
            if record is not None:
                stack.enter_context(recorded(lambda: display.picture(HEIGHT), record, title="make up"))
            _run(root, display, demo=demo, lasts=math.inf if record is None else RECORDED_FOR)
    except KeyboardInterrupt:
        say("stopped")
    except (AppError, OSError) as error:
        print(f"make up: {error}", file=sys.stderr)
        return 1
    return 0


def _display(run: RunStatus, *, logs: bool) -> Display:
    if logs:
        return AllLogs(run)
    has_screen = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return Screen(run) if has_screen else Display(run)


def _run(root: Path, display: Display, *, demo: bool, lasts: float) -> None:
    listed = procfile.read(root / "Procfile")
    given = environment.given(root)
    lasting = [process for process in listed if process.name != procfile.RELEASE] + [SUMMARY]
    if demo:
        lasting += demo_processes(given)
    data = _private_directory(root / DATA)
    with ExitStack() as stack:
        stack.enter_context(lock.exclusive(data))
        files = LogFiles(data / "logs")
        servers = _servers(given, data, display)
        release = [process for process in listed if process.name == procfile.RELEASE]
        display.expect([*servers, *(process.name for process in [*release, *lasting])])
        if demo and (reason := without_demo_jobs(given)):
            display.note(reason)
        _start_servers(stack, servers, display)
        children = environment.for_children(
            given,
            mongo_url=given.get("MONGO_DB_URL") or servers["MongoDB"].url,
            redis_url=given.get("REDIS_URL") or servers["Valkey"].url,
            flower_port=_site_port("flower", given, display),
            web_port=_site_port("web", given, display),
        )
        environment.write_for_shells(root / SHELL_FILE, given, children)
        log = RunLog(files, display)
        supervisor = stack.enter_context(Supervisor(lasting, environment=children, root=root, log=log))
        sites = {title: int(children[setting]) for title, setting, _ in _sites_of(listed)}
        display.set_addresses(addresses(children, sites))
        for process in release:
            _run_once(supervisor, process, display, files)
        supervisor.start()
        _wait_until_answering(sites.values())
        display.ready()
        _keep_running(servers, display, until=time.monotonic() + lasts)


def demo_processes(given: Mapping[str, str]) -> list[Process]:
    """Return what fills in live data: never in a MongoDB or a message queue that the user named."""
    if "MONGO_DB_URL" in given:
        return []
    return [DEMO_WITHOUT_MESSAGES if environment.has_own_queue(given) else DEMO]


def without_demo_jobs(given: Mapping[str, str]) -> str:
    """Return why the demo runs no jobs though it runs; empty if it runs them."""
    modules = given.get(environment.JOBS_IMPORTS, environment.DEMO_JOBS)
    if not demo_processes(given) or environment.DEMO_JOBS in modules:
        return ""
    return f"demo jobs are off, because {environment.JOBS_IMPORTS} is set"


def _run_once(supervisor: Supervisor, process: Process, display: Display, files: LogFiles) -> None:
    display.starting(process.name)
    if (code := supervisor.run(process)) != 0:
        output = "\n".join(f"{process.name} | {line}" for line in files.last_lines(process.name))
        raise AppError(f"`{process.command}` {describe(code)}: nothing was started. Its output:\n{output}")
    display.done(process.name)


def _servers(given: Mapping[str, str], data: Path, display: Display) -> dict[str, EmbeddedServer]:
    """Return the servers that the user did not name, by their names."""
    servers: dict[str, EmbeddedServer] = {}
    if "REDIS_URL" not in given:
        servers["Valkey"] = Valkey(data / "valkey", _port("Valkey", REDIS_PORT, display))
    if "MONGO_DB_URL" not in given:
        servers["MongoDB"] = Mongo(data / "mongodb", _port("MongoDB", MONGO_PORT, display))
    for server in servers.values():
        server.log.unlink(missing_ok=True)
    return servers


def _start_servers(stack: ExitStack, servers: Mapping[str, EmbeddedServer], display: Display) -> None:
    for name, server in servers.items():
        stack.callback(server.stop)
        _start(name, server, display)


def _start(name: str, server: EmbeddedServer, display: Display) -> None:
    display.starting(name)
    began = time.monotonic()
    server.start()
    display.running(name, f"ready on port {server.port} after {time.monotonic() - began:.1f} s")


def _keep_running(servers: Mapping[str, EmbeddedServer], display: Display, *, until: float = math.inf) -> None:
    """Start again what was killed: on the same port, with the data it had."""
    while time.monotonic() < until:
        time.sleep(1)
        for name, server in servers.items():
            if not server.is_running:
                display.ended(name, "it ended")
                _start(name, server, display)


def _sites_of(listed: list[Process]) -> list[tuple[str, str, int]]:
    return [SITES[process.name] for process in listed if process.name in SITES]


def _wait_until_answering(ports: Iterable[int]) -> None:
    """Wait for the last to be ready: an address that is printed can be opened."""
    deadline = time.monotonic() + SITES_TIMEOUT
    for port in ports:
        while not is_answering(port) and time.monotonic() < deadline:
            time.sleep(0.1)


def _port(name: str, preferred: int, display: Display) -> int:
    port = free_port(preferred)
    if port != preferred:
        display.note(f"{name}: port {preferred} is busy, using {port}")
    return port


def _site_port(process: str, given: Mapping[str, str], display: Display) -> int:
    title, setting, usual = SITES[process]
    wanted = given.get(setting, str(usual))
    if not wanted.isdecimal() or not 1 <= int(wanted) <= MAX_PORT:
        raise ConfigurationError(f"{setting}={wanted!r}: must be a port from 1 to {MAX_PORT}, such as {usual}")
    return _port(title, int(wanted), display)


def _private_directory(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    path.chmod(0o700)
    return path


def addresses(children: environment.Environment, sites: Mapping[str, int]) -> dict[str, str]:
    """Return what can be opened or connected to, without passwords: the dashboard first."""
    return {
        **{title: f"http://{LOOPBACK}:{sites[title]}" for title in ("Dashboard", "Flower") if title in sites},
        "MongoDB": redact_url(children["MONGO_DB_URL"]),
        "Redis": redact_url(children["REDIS_URL"]),
    }


@contextmanager
def _stop_signals(display: Display) -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into KeyboardInterrupt; a further one kills every child."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    is_stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping:
            kill_all()
            return
        is_stopping = True
        display.stopping()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
