"""Run every benchmark, against servers of its own: `python -m benchmarks [--quick] [--only GROUP] [--ratios FILE]`.

Each result is written as soon as it is known. A wrong one is not: its group ends, and the next one is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, chdir, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from pymongo import monitoring
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import eligible_agencies, idle, job_queues, report, snooze_scan, stale_scan
from benchmarks.dashboard import answers, browser, busy, live, requests
from benchmarks.harness import EVERYTHING_ON, Bench, Result, WrongResult, set_environment
from benchmarks.message_queue import lateness, operations, pages, peers, queues, requeue
from benchmarks.rooms import promptness, waking
from dev.servers import Mongo, Valkey
from models import database

PAGE = Path(__file__).resolve().with_name("results.md")
RATIOS = PAGE.with_name("ratios.json")  # what `tests/e2e/test_ratios.py` compares with
CACHE_GB = 1.0  # as in production the data fit into it, so that reading them all costs no disk
OPLOG_MB = 2048  # all writes to the rooms of one run, from which the run is checked
# The append-only file is on, as in `make up`; it is not rewritten while something is measured.
VALKEY_CONFIG = {"auto-aof-rewrite-percentage": "0"}

Benchmark = Callable[[Bench], Result]
Group = tuple[str, Sequence[Benchmark]]
"""The server's name, or what else the figures depend on, and what is measured with it."""
MONGODB: Sequence[Benchmark] = (
    eligible_agencies.run,
    stale_scan.run,
    snooze_scan.run,
)
JOBS: Sequence[Benchmark] = (
    job_queues.one_name,
    job_queues.hundred_names,
    job_queues.storing,
    job_queues.status,
)
MESSAGE_QUEUE: Sequence[Benchmark] = (
    requeue.throughput,
    requeue.tick,
    lateness.run,
    operations.one_client,
    operations.eight_clients,
    pages.main,
    pages.processing,
    pages.dead,
)
ROOMS = (
    waking.many,
    waking.between,
    waking.few,
    waking.backlog,
    promptness.idle,
    promptness.ahead,
    promptness.ahead_on_a_busy_machine,
)


def main() -> None:
    wanted, console = _arguments(), Console()
    results: list[Result] = []
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="queue-manager-bench-") as directory, _progress(console) as progress:
        bench = Bench(progress=progress, divided_by=10 if wanted.quick else 1)
        try:
            # There is no .env: the settings, which are read later, have their defaults and the servers started here.
            with chdir(directory):
                for group in [wanted.only] if wanted.only else GROUPS:
                    try:
                        for result in _measured(group, bench, Path(directory)):
                            results.append(result)
                            if not wanted.quick:
                                _write(result)
                    except WrongResult as error:
                        wrong.append(f"{group}: {error}")
        except KeyboardInterrupt:
            sys.exit(130)
    report.show(results, console)
    if wanted.ratios:
        wanted.ratios.write_text(report.ratios(results), encoding="utf-8")
    if not wanted.quick:
        console.print(f"Written to benchmarks/{PAGE.name} and benchmarks/{RATIOS.name}")
    if wrong:
        sys.exit("\n".join(["Wrong results, which are not written:", *wrong]))


def _measured(group: str, bench: Bench, directory: Path) -> Iterator[Result]:
    with GROUPS[group](bench, directory) as (server, benchmarks):
        for benchmark in benchmarks:
            result = benchmark(bench)
            yield replace(result, server=result.server or server)


def _write(result: Result) -> None:
    """Write one result in the place of the last one, if there is one."""
    PAGE.write_text(report.with_section(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")
    RATIOS.write_text(report.with_ratios(RATIOS.read_text(encoding="utf-8"), result), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure our ways against others.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data; nothing is written")
    parser.add_argument("--only", choices=list(GROUPS), help="one group; the others keep their results")
    parser.add_argument("--ratios", type=lambda name: Path(name).resolve(), help="write the ratios by name, as JSON")
    return parser.parse_args()


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


@contextmanager
def _mongodb(benchmarks: Sequence[Benchmark], bench: Bench, directory: Path) -> Iterator[Group]:
    monitoring.register(bench.recorder)
    with Mongo(directory / f"mongo-{len(benchmarks)}", cache_gb=CACHE_GB) as mongo:
        with Valkey(directory / f"valkey-{len(benchmarks)}", config=VALKEY_CONFIG) as valkey:
            set_environment(MONGO_DB_URL=mongo.url, REDIS_URL=valkey.url, QM_WORKER_CONCURRENCY=str(job_queues.THREADS))
            try:
                version = database.client().server_info()["version"]
                yield f"MongoDB {version}, {CACHE_GB:g} GB cache", benchmarks
            finally:
                database.close()


@contextmanager
def _message_queue(bench: Bench, directory: Path) -> Iterator[Group]:
    with Valkey(directory / "valkey", config=VALKEY_CONFIG) as valkey:
        set_environment(REDIS_URL=valkey.url)
        comparisons = [partial(peers.run, operation=operation) for operation in peers.OPERATIONS]
        if not peers.is_installed():
            bench.progress.console.print(f"Without {peers.MISSING}", highlight=False)
        yield queues.server_name(), [*MESSAGE_QUEUE, *(comparisons if peers.is_installed() else [])]


@contextmanager
def _rooms(bench: Bench, directory: Path) -> Iterator[Group]:
    with Mongo(directory / "mongo-rooms", cache_gb=CACHE_GB, oplog_mb=OPLOG_MB) as mongo:
        with Valkey(directory / "valkey-rooms", config=VALKEY_CONFIG) as valkey:
            set_environment(MONGO_DB_URL=mongo.url, REDIS_URL=valkey.url, QM_CONVERSATIONS="true")
            servers = {"mongod": mongo.pid, "valkey": valkey.pid}
            try:
                yield queues.server_name(), [partial(benchmark, servers=servers) for benchmark in ROOMS]
            finally:
                database.close()


@contextmanager
def _idle(bench: Bench, directory: Path) -> Iterator[Group]:
    with Mongo(directory / "mongo-idle") as mongo, Valkey(directory / "valkey-idle") as valkey:
        set_environment(MONGO_DB_URL=mongo.url, REDIS_URL=valkey.url, **EVERYTHING_ON)
        with idle.installed() as programs:
            servers = {"mongod": mongo.pid, "valkey": valkey.pid}
            yield (
                queues.server_name(),
                [partial(measure, servers=servers, programs=programs) for measure in (idle.run, idle.run_together)],
            )


@contextmanager
def _dashboard(bench: Bench, directory: Path) -> Iterator[Group]:
    """Measure on both servers. Without a browser, the benchmarks that need one are left out."""
    path = browser.find()
    if path is None:
        bench.progress.console.print(f"Without {browser.MISSING}", highlight=False)
    with Mongo(directory / "mongo-dashboard", cache_gb=CACHE_GB) as mongo:
        with Valkey(directory / "valkey-dashboard", config=VALKEY_CONFIG) as valkey:
            set_environment(MONGO_DB_URL=mongo.url, REDIS_URL=valkey.url, **EVERYTHING_ON)
            try:
                in_browser = [] if path is None else [partial(_in_browser, run, path) for run in (live.run, busy.run)]
                yield queues.server_name(), [requests.run, answers.run, *in_browser]
            finally:
                database.close()


def _in_browser(run: Callable[..., Result], path: str, bench: Bench) -> Result:
    return replace(run(bench, path=path), server=browser.version(path))


GROUPS: dict[str, Callable[[Bench, Path], AbstractContextManager[Group]]] = {
    "mongodb": partial(_mongodb, MONGODB),
    "jobs": partial(_mongodb, JOBS),
    "message_queue": _message_queue,
    "rooms": _rooms,
    "dashboard": _dashboard,
    "idle": _idle,
}


if __name__ == "__main__":
    main()
