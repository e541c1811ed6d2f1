"""Run every benchmark against a MongoDB of its own: `python -m benchmarks [--quick]`."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from pymongo import monitoring
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import eligible_agencies, report, snooze_scan, stale_scan
from benchmarks.explain import Recorder
from benchmarks.harness import Bench, Result, WrongResult
from models import database
from queue_manager.core.settings import Settings
from queue_manager.devstack.servers import Mongo

PAGE = Path(__file__).resolve().with_name("results.md")
CACHE_GB = 1.0  # as in production the data fit into it, so that reading them all costs no disk
BENCHMARKS = (eligible_agencies, stale_scan, snooze_scan)


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    console = Console()
    with tempfile.TemporaryDirectory(prefix="queue-manager-bench-") as directory:
        # There is no .env: the settings, which are read later, have their defaults and this server.
        with Mongo(Path(directory) / "mongo", cache_gb=CACHE_GB) as mongo, chdir(directory):
            _set_environment(mongo.url)
            try:
                results, server = _run(console, quick=quick)
            except WrongResult as wrong:
                sys.exit(f"A wrong result, so nothing was written. {wrong}")
            except KeyboardInterrupt:
                sys.exit(130)
            finally:
                database.close()
    report.show(results, console)
    if quick:
        console.print("A quick run; the page is written by `make bench`.")
        return
    PAGE.write_text(report.page(results, server=server), encoding="utf-8")
    console.print(f"Written to benchmarks/{PAGE.name}")


def _run(console: Console, *, quick: bool) -> tuple[list[Result], str]:
    recorder = Recorder()
    monitoring.register(recorder)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bench = Bench(progress=progress, recorder=recorder, divided_by=10 if quick else 1)
        results = [benchmark.run(bench) for benchmark in BENCHMARKS]
    server = database.client().server_info()["version"]
    return results, f"MongoDB {server}, {CACHE_GB:g} GB cache"


def _set_environment(mongo_url: str) -> None:
    """Forget what the shell has set for the settings, and name the server."""
    for name in Settings.model_fields:
        os.environ.pop(name.upper(), None)
    os.environ.update(MONGO_DB_URL=mongo_url, APP_ENV="production")


if __name__ == "__main__":
    main()
