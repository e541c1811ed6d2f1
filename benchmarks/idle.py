"""The processes of the Procfile with everything on and nothing to do: memory, processor time and commands to Redis."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from beat_schedule import systems
from benchmarks.harness import Bench, Figure, Result, Table, Way, WrongResult, expect
from benchmarks.rooms.processes import cost
from dev.children import Child, spawn
from dev.ports import free_port, is_answering
from dev.processes import children
from dev.procfile import RELEASE, read
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from queue_manager.telemetry import counters, worker_heartbeats

ROOT = Path(__file__).resolve().parents[1]
WORKERS = {"worker", "jobs", "scans"}
MEASURED_FOR = 60.0  # seconds, so that it includes what is done every minute
STARTS_WITHIN = 120.0  # seconds
SCANS_BEFORE = 3  # runs of each frequent scan before the measurement, so that the start is over
LEAST_RATE = 0.5  # per second, of a command that is listed
FREQUENT = 10.0  # seconds between two scans, which then run while it is measured


@dataclass(frozen=True, kw_only=True)
class Idle:
    """What the processes cost. `megabytes` (PSS) and `percent` (of one core) are by the name in the Procfile."""

    megabytes: dict[str, float]
    percent: dict[str, float]
    commands: dict[str, float]
    """Commands per second by name, those inside of scripts included."""
    processes: dict[str, int]


def run(bench: Bench, *, servers: Mapping[str, int], programs: Path) -> Result:
    """Measure the Procfile's commands."""
    return _compare(bench, "Idle processes", "the Procfile's processes", _commands_of_procfile(), servers, programs)


def run_together(bench: Bench, *, servers: Mapping[str, int], programs: Path) -> Result:
    """Measure `queue-manager start`."""
    commands = {RELEASE: _commands_of_procfile()[RELEASE], "start": "exec queue-manager start"}
    return _compare(bench, "Idle processes of one start", "`queue-manager start`", commands, servers, programs)


def _commands_of_procfile() -> dict[str, str]:
    return {process.name: process.shell_line for process in read(ROOT / "Procfile")}


def _compare(
    bench: Bench, title: str, what: str, commands: Mapping[str, str], servers: Mapping[str, int], programs: Path
) -> Result:
    """Measure three times in one life of the processes; `servers` are their process ids by name."""
    measured: list[Idle] = []
    with processes(commands, programs) as started:
        pids = {**{name: child.pid for name, child in started.items()}, **servers}
        way = Way(
            name="everything on",
            run=lambda: _measure(pids),
            check=measured.append,
            prepare=lambda: require_all(started),
        )
        result = bench.compare(
            title,
            f"{what}, {settings().worker_concurrency} per pool, in an installation as in production; and both servers",
            [way],
            rounds=1 if bench.is_quick else 3,
            figures=(
                Figure(heading="PSS, MB", of=lambda run: sum(run.result.megabytes.values())),
                Figure(heading="% of a core", of=lambda run: sum(run.result.percent.values())),
                Figure(heading="Redis commands/s", of=lambda run: sum(run.result.commands.values())),
                Figure(heading="processes", of=lambda run: sum(run.result.processes.values())),
            ),
            warm_up=False,
        )
        require_all(started)
    return replace(result, tables=[_by_process(measured[-1]), _by_command(measured[-1])])


@contextmanager
def installed() -> Iterator[Path]:
    """Install what production has, and yield the directory of its programs.

    Some libraries import optional packages if these are installed, so the packages of the tests would take memory, too.
    """
    with TemporaryDirectory(prefix="queue-manager-installed-") as directory:
        yield _install(directory)


def _install(directory: str) -> Path:
    programs = Path(directory) / "bin"
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    pip: list[str | Path] = [programs / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", "-e", ROOT], check=True)
    return programs


@contextmanager
def processes(
    commands: Mapping[str, str] | None = None,
    programs: Path = Path(sys.executable).parent,
    *,
    web_port: int | None = None,
) -> Iterator[dict[str, Child]]:
    """Start these commands, by default what the Procfile lists; yield them when everything answers and scans run."""
    ports = {"QM_WEB_PORT": str(web_port or free_port()), "FLOWER_PORT": str(free_port())}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    env = {"JOBS_IMPORTS": '["dev.demo_jobs"]', **os.environ, **ports, "PATH": path}
    with ExitStack() as stack:
        started: dict[str, Child] = {}
        for name, line in (commands or _commands_of_procfile()).items():
            log = stack.enter_context(open(f"{name}.log", "wb"))
            command = ["/bin/sh", "-c", line]
            if name == RELEASE:
                subprocess.run(command, env=env, cwd=ROOT, stdout=log, stderr=log, check=True)
            else:
                started[name] = spawn(command, env=env, cwd=ROOT, stdout=log, stderr=log)
                stack.callback(started[name].end)
        ends = time.monotonic() + STARTS_WITHIN
        while not (all(is_answering(int(port)) for port in ports.values()) and _have_started()):
            if time.monotonic() > ends:
                require_all(started)
                raise WrongResult(f"not all scans ran within {STARTS_WITHIN:.0f} s")
            time.sleep(0.2)
        yield started


def _have_started() -> bool:
    return _online() == WORKERS and min(_scans().values()) >= SCANS_BEFORE


def _online() -> set[str]:
    with connect(settings().redis_url) as client:
        return {worker.name.partition("@")[0] for worker in worker_heartbeats.online(client)}


def _scans() -> dict[str, int]:
    """Return how often each frequent scan has run."""
    every = {system.scan_task: system.period(settings()) for system in systems() if system.is_on(settings())}
    names = [name for name, period in every.items() if period.total_seconds() <= FREQUENT]
    with connect(settings().redis_url) as client:
        found = counters.totals(client, map(counters.source, names))
    return {name: totals.get("runs", 0) for name, totals in zip(names, found, strict=True)}


def require_all(started: Mapping[str, Child]) -> None:
    for name, child in started.items():
        if child.poll() is not None:
            raise WrongResult(f"{name} ended: {Path(f'{name}.log').read_text()[-500:]}")
    expect("workers", _online(), WORKERS)


def _measure(pids: Mapping[str, int]) -> Idle:
    trees = {name: tree(pid) for name, pid in pids.items()}
    commands, seconds, began = _commands(), _seconds(trees), time.monotonic()
    scans = _scans()
    time.sleep(MEASURED_FOR)
    took = time.monotonic() - began
    sent = {name: count - commands.get(name, 0) for name, count in _commands().items()}
    spent = {name: now - seconds[name] for name, now in _seconds(trees).items()}
    expect("scans that did not run", {name for name, count in _scans().items() if count == scans[name]}, set())
    return Idle(
        megabytes={name: sum(map(proportional_megabytes, tree)) for name, tree in trees.items()},
        percent={name: 100 * used / took for name, used in spent.items()},
        commands={name: count / took for name, count in sent.items()},
        processes={name: len(tree) for name, tree in trees.items()},
    )


def _commands() -> dict[str, int]:
    with connect(settings().redis_url) as client:
        stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): of_command["calls"] for name, of_command in stats.items()}


def _seconds(trees: Mapping[str, list[int]]) -> dict[str, float]:
    return {name: sum(cost(pid).seconds for pid in tree) for name, tree in trees.items()}


def tree(pid: int) -> list[int]:
    """Return a process and all that it started."""
    return [pid, *(one for child in children(pid) for one in tree(child))]


def proportional_megabytes(pid: int) -> float:
    """Return the PSS of a process: its own memory, and its share of what it has in common with others."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024


def _by_process(idle: Idle) -> Table:
    return Table(
        caption="By process",
        headings=("name", "processes", "PSS, MB", "% of a core"),
        rows=[
            (name, str(count), f"{idle.megabytes[name]:.0f}", f"{idle.percent[name]:.2f}")
            for name, count in idle.processes.items()
        ],
    )


def _by_command(idle: Idle) -> Table:
    most = sorted(idle.commands.items(), key=lambda item: item[1], reverse=True)
    return Table(
        caption="By command of Redis",
        headings=("command", "per second"),
        rows=[(name, f"{rate:.1f}") for name, rate in most if rate >= LEAST_RATE],
    )
