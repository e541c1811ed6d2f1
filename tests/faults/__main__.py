"""Run schedules of random faults: `python -m tests.faults --schedules 20 [--seed 1] [--minutes 10] [--report]`.

The seed of a schedule decides its faults and its work, so `--schedules 1 --seed N` replays schedule N; what the
machine does at the same time it does not decide. After a violation the system is started afresh, and the history and
the logs are kept in `build/faults`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from pprint import pformat

from tests.e2e.celery_processes import ROOT
from tests.faults import clocks, isolation, report
from tests.faults.schedule import Result, run
from tests.faults.world import World, running_world

PAGE = Path(__file__).with_name("results.md")
SLOW = 15.0  # seconds of recovery after which the evidence is kept, too
EVIDENCE = ROOT / "build" / "faults"


def main() -> None:
    wanted = _arguments()
    if obstacle := isolation.obstacle():
        print(f"Left out, because {obstacle}: faults that need a network and disks of their own", flush=True)
    else:
        isolation.enter()
    if not clocks.is_possible():
        print(f"Left out, because there is no {clocks.COMPILER}: wrong clocks of Redis and MongoDB", flush=True)
    ends_at = time.monotonic() + wanted.minutes * 60
    seeds = iter(range(wanted.seed, wanted.seed + wanted.schedules))
    results: list[Result] = []
    with suppress(KeyboardInterrupt):
        while len(results) < wanted.schedules and time.monotonic() < ends_at:
            for result in _until_a_violation(seeds, ends_at):
                results.append(result)
                _show(result)
    print(*report.summary(results), sep="\n")
    if wanted.report and results:
        report.add_row(PAGE, results, os.getloadavg()[0])
    sys.exit(any(result.violations for result in results))


def _show(result: Result) -> None:
    print(result.line, flush=True)
    for violation in result.violations:
        print(f"  {violation}", flush=True)
    if result.violations:
        print(f"  replay: python -m tests.faults --schedules 1 --seed {result.seed}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Run schedules of random faults.")
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule; each has the next number")
    parser.add_argument("--minutes", type=float, default=600, help="begin no schedule after so many")
    parser.add_argument("--report", action="store_true", help="add a row to tests/faults/results.md")
    return parser.parse_args()


def _until_a_violation(seeds: Iterator[int], ends_at: float) -> Iterator[Result]:
    """Start everything, and run schedules until one finds a violation."""
    with tempfile.TemporaryDirectory(prefix="queue-manager-faults-") as directory:
        with running_world(Path(directory)) as world:
            if world.previous_release is None:
                print("Left out, because this clone has no history: processes of the release before", flush=True)
            for seed in seeds:
                result = run(world, seed)
                if result.violations or result.slowest > SLOW:
                    _keep_evidence(world, result)
                yield result
                if result.violations or time.monotonic() > ends_at:
                    return


def _keep_evidence(world: World, result: Result) -> None:
    target = EVIDENCE / str(result.seed)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    target.joinpath("history.txt").write_text(f"{result.line}\n{pformat(result.violations)}\n{pformat(result.history)}")
    for log in world.directory.glob("*.log"):
        shutil.copy(log, target)


if __name__ == "__main__":
    main()
