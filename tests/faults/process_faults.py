"""Faults of processes: kills, freezes, terminations, clock jumps, and poison items."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import suppress

from dev.processes import started_at
from tests.e2e.celery_processes import ROOT
from tests.eventually import eventually
from tests.faults.app import POISONS
from tests.faults.faults import Fault, kind
from tests.faults.world import SystemProcess, World, send_signal

HOURS = 3_600.0
STOPS_WITHIN = 20.0  # seconds after SIGTERM; the shutdown timeout is 3, a pool may be hanging
STARTS_WITHIN = 30.0  # seconds, on a busy machine, until a process handles signals
ORPHANS_END_WITHIN = 10.0  # seconds
WORKERS = ("worker1", "worker2", "jobs1", "jobs2", "scans1", "scans2")
PROCESSES = (*WORKERS, "beat1", "beat2", "web1", "web2")


@kind(PROCESSES, (0.1, 3), weight=4)
def kill(world: World, fault: Fault) -> Iterator[None]:
    """SIGKILL to a process and its children."""
    process = world.processes[fault.target]
    process.kill()
    try:
        yield
    finally:
        process.restart()


@kind(WORKERS, (1, 3), weight=2)
def kill_main(world: World, fault: Fault) -> Iterator[None]:
    """SIGKILL to the main process of a worker alone: its children must end by themselves."""
    process = world.processes[fault.target]
    orphans = {pid: started_at(pid) for pid in process.children()}
    process.signal(signal.SIGKILL)
    try:
        yield
        with suppress(AssertionError):
            eventually(lambda: not _left(orphans), within=ORPHANS_END_WITHIN)
        if left := _left(orphans):
            world.complaints.append(f"{process.name} was killed, and its children {left} live on")
    finally:
        process.restart()


@kind(WORKERS, (0.1, 0.2), weight=4)
def kill_child(world: World, fault: Fault) -> Iterator[None]:
    """SIGKILL to a pool process, as when memory is short."""
    send_signal(_one_child(world.processes[fault.target], fault), signal.SIGKILL)
    yield


@kind(PROCESSES, (1, 7), weight=3, may_outlast_leases=True)
def freeze(world: World, fault: Fault) -> Iterator[None]:
    """SIGSTOP to a process and its children, SIGCONT afterwards."""
    process = world.processes[fault.target]
    yield from frozen([process.pid, *process.children()])


@kind(WORKERS, (1, 7), weight=2, may_outlast_leases=True)
def freeze_child(world: World, fault: Fault) -> Iterator[None]:
    yield from frozen(_one_child(world.processes[fault.target], fault))


@kind(PROCESSES, (0.5, 3), weight=4)
def terminate(world: World, fault: Fault) -> Iterator[None]:
    """SIGTERM to a process, as at a deployment; it is started again when it has ended."""
    process = world.processes[fault.target]
    expected = _tell_to_end(process)
    try:
        yield
    finally:
        _wait_until_ended(world, process, expected)
        process.restart()


@kind(PROCESSES, (4, 8), weight=3, since=1_100)
def run_previous_release(world: World, fault: Fault) -> Iterator[None]:
    """A process is replaced by one of the release before, and back, as in an upgrade step by step."""
    process = world.processes[fault.target]
    _wait_until_ended(world, process, _tell_to_end(process))
    if world.previous_release:
        process.run_release(world.previous_release)
    process.restart()
    try:
        yield
    finally:
        process.run_release(ROOT)
        process.restart()  # killed: whether the release before ends in time is not of interest any more


@kind(PROCESSES, (2, 8), weight=2)
def wrong_clock(world: World, fault: Fault) -> Iterator[None]:
    """The clock of a process jumps, and back."""
    process = world.processes[fault.target]
    process.clock.set(float(fault.one_of(-HOURS, HOURS, -7.0, 10.0)))
    try:
        yield
    finally:
        process.clock.set(0)


def _tell_to_end(process: SystemProcess) -> tuple[int, ...]:
    """Send SIGTERM; return the exit codes that are right."""
    expected = (0,) if time.monotonic() - process.started_at > STARTS_WITHIN else (0, -signal.SIGTERM)
    process.signal(signal.SIGTERM)
    return expected


def _wait_until_ended(world: World, process: SystemProcess, expected: tuple[int, ...]) -> None:
    with suppress(AssertionError):
        eventually(lambda: not process.is_alive(), within=STOPS_WITHIN)
    if process.is_alive():
        process.write_stacks()
    if process.exit_code() not in expected:
        world.complaints.append(f"{process.name} was to end, and its exit code is {process.exit_code()}")


def _left(pids: dict[int, str | None]) -> list[int]:
    return [pid for pid, started in pids.items() if started is not None and started_at(pid) == started]


def _one_child(process: SystemProcess, fault: Fault) -> list[int]:
    children = process.children()
    return [int(fault.one_of(*children))] if children else []


def frozen(pids: list[int]) -> Iterator[None]:
    send_signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        send_signal(pids, signal.SIGCONT)


# Poison: it is among the work from the beginning (`work.Work`)


@kind(("rooms",), (0, 0), weight=3)
def poison_room(_: World, __: Fault) -> Iterator[None]:
    yield


@kind(("jobs",), (0, 0), weight=1)
def poison_job(_: World, __: Fault) -> Iterator[None]:
    yield


KINDS = (
    kill,
    kill_main,
    kill_child,
    freeze,
    freeze_child,
    terminate,
    run_previous_release,
    wrong_clock,
    poison_room,
    poison_job,
)


def poisons(faults: list[Fault]) -> tuple[list[str], int]:
    """Return what the poison rooms of a schedule do, and the number of jobs that end their process."""
    rooms = [str(fault.one_of(*POISONS)) for fault in faults if fault.kind.name == "poison-room"]
    return rooms, sum(fault.kind.name == "poison-job" for fault in faults)
