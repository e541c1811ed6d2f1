"""Work steadily with all processes of the Procfile: `python -m benchmarks.soak --help`.

First the capacity is measured: how fast a burst of rooms, of messages and of jobs is done. Then all three are added
at once, each at a third of `--share` of its own capacity, because they share the machine. Messages go through the web
process, which three open pages follow meanwhile.

It fails if work is not done, or done twice; if a process ends; or if both the PSS and the RSS of a process grow by
more than `MAX_GROWTH` after the first third of the time. The servers' memory is shown, and not judged: their caches
grow with the data.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import idle
from benchmarks.harness import EVERYTHING_ON, WrongResult, expect, set_environment
from benchmarks.rooms.trial import let_redis_be_known
from benchmarks.soak import marks, work
from benchmarks.soak.memory import Growth, Memory
from benchmarks.soak.work import Work
from dev.ports import free_port
from dev.servers import Mongo, Valkey

SAMPLE_INTERVAL = 10.0  # seconds
CLEAR_INTERVAL = 60.0
DUE_WITHIN = 10.0  # seconds: the period of the rooms' scan
STEP = 1.0  # seconds between two additions of work
DONE_WITHIN = 120.0  # seconds, of a burst or of the last work
BURSTS = 2  # the first warms up
KINDS = 3
ENVIRONMENT = {
    **EVERYTHING_ON,
    "JOBS_IMPORTS": '["benchmarks.soak.marks"]',
    # What is kept must have reached its limit when the warm-up ends: finished jobs are kept for 1.5 minutes.
    "JOBS_RETENTION_DAYS": "0.001",
}


def main() -> None:
    wanted, console = _arguments(), Console()
    samples = wanted.samples and wanted.samples.absolute()
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="queue-manager-soak-") as directory, chdir(directory), _servers() as pids:
        try:
            with idle.processes(web_port=port) as children, work.all_work(port) as kinds:
                memory = Memory(roots={name: child.pid for name, child in children.items()}, servers=pids)
                rates = {kind.kind: wanted.share / KINDS * _capacity(kind, console) for kind in kinds}
                try:
                    unavailable = _work_steadily(kinds, rates, memory, minutes=wanted.minutes, port=port)
                    _require_done(kinds)
                finally:
                    found = memory.growth()
                    _show(found, kinds, rates, console)
                    if samples:
                        memory.write(samples)
        except WrongResult as wrong:
            sys.exit(f"Failed. {wrong}")
    console.print(f"{unavailable:,} pages could not be read in time", highlight=False)
    if leaks := [one.process for one in found if one.is_leak and one.process not in pids]:
        sys.exit(f"Failed. The memory keeps growing: {', '.join(leaks)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="Work steadily, and watch memory.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--share", type=float, default=0.5, help="of the measured capacity (default: 0.5)")
    parser.add_argument("--samples", type=Path, metavar="FILE", help="write the memory over time to it, as CSV")
    return parser.parse_args()


@contextmanager
def _servers() -> Iterator[dict[str, int]]:
    with Mongo(Path("mongo")) as mongo, Valkey(Path("valkey")) as valkey:
        set_environment(MONGO_DB_URL=mongo.url, REDIS_URL=valkey.url, **ENVIRONMENT)
        let_redis_be_known()
        yield {"mongod": mongo.pid, "valkey": valkey.pid}


def _capacity(kind: Work, console: Console) -> float:
    """Return how much of a kind of work is done per second, from the first of a burst to the last."""
    rate = 0.0
    for _ in range(BURSTS):
        before = kind.done
        kind.add_some(kind.burst)
        _wait_until(kind, before + 1)
        began, first = time.monotonic(), kind.done
        _wait_until(kind, kind.added)
        rate = (kind.added - first) / (time.monotonic() - began)
    console.print(f"Capacity for {kind.kind}: {rate:,.0f} a second", highlight=False)
    return rate


def _wait_until(kind: Work, done: int) -> None:
    ends = time.monotonic() + DONE_WITHIN
    while kind.done < done:
        if time.monotonic() > ends:
            raise WrongResult(f"{kind.kind}: only {kind.done:,} of {kind.added:,} were done")
        time.sleep(0.02)


def _work_steadily(kinds: Sequence[Work], rates: dict[str, float], memory: Memory, *, minutes: float, port: int) -> int:
    """Add work and sample the memory. Return how many pages were unavailable."""
    unavailable = 0
    began = sampled = cleared = time.monotonic()
    before = {kind.kind: kind.added for kind in kinds}
    while (now := time.monotonic()) < began + minutes * 60:
        for kind in kinds:
            kind.add_some(before[kind.kind] + int((now - began) * rates[kind.kind]) - kind.added, DUE_WITHIN)
        if now >= sampled + SAMPLE_INTERVAL:
            memory.sample()
            unavailable += work.read_pages(port)
            sampled = now
        if now >= cleared + CLEAR_INTERVAL:
            work.clear_up()
            cleared = now
        time.sleep(STEP)
    return unavailable


def _require_done(kinds: Sequence[Work]) -> None:
    """Raise WrongResult unless all work was done, and once."""
    for kind in kinds:
        _wait_until(kind, kind.added)
        expect(f"{kind.kind} done more than once", marks.repeated(kind.kind), 0)


def _show(found: Sequence[Growth], kinds: Sequence[Work], rates: dict[str, float], console: Console) -> None:
    for kind in kinds:
        console.print(
            f"{kind.kind}: {kind.done:,} of {kind.added:,} done, {rates[kind.kind]:,.0f} a second", highlight=False
        )
    table = Table("process", "PSS: first, MB", "last, MB", "MB per hour", "RSS: MB per hour")
    for one in found:
        growth = f"{one.per_hour:+.1f}", f"{one.resident_per_hour:+.1f}"
        table.add_row(one.process, f"{one.first:.1f}", f"{one.last:.1f}", *growth)
    console.print(table)
    console.print(f"{os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}", highlight=False)


if __name__ == "__main__":
    main()
