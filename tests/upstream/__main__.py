"""Runs the integration tests of kombu and Celery, unchanged, on kombu's own Redis transport and on ours.

Their source distributions are downloaded once, into `.upstream`; `sources.txt` pins versions and hashes. Each
transport has a Valkey of its own, and both run at the same time. Fails if a test passes on kombu's own transport and
fails on ours without being listed in `differences.toml`, or if a listed one does not.

Logs of the last run are in `.upstream/logs`. With arguments, runs only the named tests, such as `kombu/test_redis.py`
or `celery/test_tasks.py::test_tasks::test_eta`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from redis import Redis

from dev.children import spawn
from dev.ports import LOOPBACK
from dev.servers import Valkey
from tests.upstream.comparison import compare, report

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = HERE / "sources.txt"
CACHE = ROOT / ".upstream"
LOGS = CACHE / "logs"
FILES = {"kombu": "test_redis*.py", "celery": "test_*.py"}
TESTS = "t/integration"
FILE_TIMEOUT = 2400  # seconds
MAX_REPEATS = 2  # upstream repeats many of its tests up to five times
PLUGINS = ("pytest_timeout", "celery.contrib.pytest", "tests.upstream.plugin")
OWN_SETTINGS = {"worker_consumer": "queue_manager.broker.consumer:Consumer"}


def main(names: Sequence[str]) -> int:
    """Run the tests; return the exit code."""
    listed = {test: reason for test, reason in differences().items() if not names or test.startswith(tuple(names))}
    archives = download()
    shutil.rmtree(LOGS, ignore_errors=True)
    with TemporaryDirectory() as directory, ThreadPoolExecutor() as executor:
        with (
            Suite("stock", Path(directory), archives) as stock,
            Suite("ours", Path(directory), archives) as ours,
        ):
            files = sorted({name.partition("::")[0] for name in names}) or stock.files()
            of_stock, of_ours = executor.map(partial(run_all, files, names), (stock, ours))
            for _ in range(MAX_REPEATS):
                result = compare(of_stock, of_ours, listed)
                for test in [*result.not_listed, *result.only_ours]:
                    suite, found = (ours, of_ours) if test in result.not_listed else (stock, of_stock)
                    found.update(suite.run(test.partition("::")[0], [test]))
    result = compare(of_stock, of_ours, listed)
    print(*report(result, listed), sep="\n")
    return 0 if result.is_as_listed else 1


def differences() -> dict[str, str]:
    """Return each test that fails on our transport deliberately, and the reason."""
    listed = tomllib.loads((HERE / "differences.toml").read_text())["difference"]
    return {test: difference["reason"] for difference in listed for test in difference["tests"]}


def versions() -> dict[str, str]:
    return dict(re.findall(r"^(\w+)==(\S+) --hash", SOURCES.read_text(), re.MULTILINE))


def download() -> dict[str, Path]:
    """Return the source distribution of each project; pip verifies their hashes."""
    archives = {project: CACHE / f"{project}-{version}.tar.gz" for project, version in versions().items()}
    if not all(archive.exists() for archive in archives.values()):
        options = ["--quiet", "--no-deps", "--no-binary", ",".join(archives), "--dest", str(CACHE)]
        command = [sys.executable, "-m", "pip", "download", *options, "--require-hashes", "--requirement", str(SOURCES)]
        subprocess.run(command, check=True)
    return archives


def run_all(files: Sequence[str], names: Sequence[str], suite: Suite) -> dict[str, str]:
    outcomes: dict[str, str] = {}
    for file in files:
        outcomes |= suite.run(file, [name for name in names if name.startswith(f"{file}::")])
        failures = sum(outcomes[test] == "failed" for test in outcomes if test.startswith(file))
        print(f"{suite.name}: {file}, {failures} failed", flush=True)
    return outcomes


class Suite:
    """The tests on one transport, with a Valkey and a copy of the sources; a context manager."""

    def __init__(self, name: str, directory: Path, archives: Mapping[str, Path]) -> None:
        self.name = name
        self._directory = directory / name
        self._valkey = Valkey(self._directory / "valkey", appendonly=False)
        self._folders = {project: unpack(archive, self._directory) for project, archive in archives.items()}
        if name == "ours":  # a file that Celery's tests read
            (self._folders["celery"] / "integration-tests-config.json").write_text(json.dumps(OWN_SETTINGS))

    def __enter__(self) -> Suite:
        self._valkey.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._valkey.stop()

    def files(self) -> list[str]:
        """Return the files of tests, such as `kombu/test_redis.py`."""
        return [
            f"{project}/{path.name}"
            for project, pattern in FILES.items()
            for path in sorted((self._folders[project] / TESTS).glob(pattern))
        ]

    def run(self, file: str, tests: Sequence[str] = ()) -> dict[str, str]:
        """Run the tests of a file in a process of their own; return their outcomes."""
        project = file.partition("/")[0]
        with Redis.from_url(self._valkey.url) as client:
            client.flushall()
        reports = self._directory / "outcomes"
        reports.write_text("")
        wanted = [test.replace(f"{project}/", f"{TESTS}/", 1) for test in tests or [file]]
        plugins = [word for plugin in PLUGINS for word in ("-p", plugin)]
        command = [sys.executable, "-m", "pytest", *plugins, "-p", "no:cacheprovider", "--rootdir", ".", *wanted]
        log = LOGS / self.name / f"{file}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            folder = self._folders[project]
            child = spawn(command, env=self._environment(reports), cwd=folder, stdout=output, stderr=output)
            try:
                child.wait(FILE_TIMEOUT)
            except subprocess.TimeoutExpired:
                print(f"{self.name}: {file} did not end within {FILE_TIMEOUT} s", flush=True)
            finally:
                child.kill()
        outcomes: dict[str, str] = {}
        for line in reports.read_text().splitlines():
            test, outcome = json.loads(line)
            name = test.replace(f"{TESTS}/", f"{project}/", 1)
            if outcomes.get(name) != "failed":  # a test has several reports if its parts or its teardown have
                outcomes[name] = outcome
        return outcomes

    def _environment(self, reports: Path) -> dict[str, str]:
        port = str(self._valkey.port)
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *([HERE / "batched"] if self.name == "ours" else [])])),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "UPSTREAM_OUTCOMES": str(reports),
            "TEST_BROKER": self._valkey.url,
            "TEST_BACKEND": self._valkey.url,
            "REDIS_HOST": LOOPBACK,
            "REDIS_PORT": port,
            "REDIS_6379_TCP": port,
        }


def unpack(archive: Path, directory: Path) -> Path:
    """Unpack the tests of a source distribution with their configuration; return the folder.

    The package itself is left out, because the installed one is tested.
    """
    name = archive.name.removesuffix(".tar.gz")
    with tarfile.open(archive) as files:
        wanted = [
            member
            for member in files
            if member.name.startswith(f"{name}/t/") or member.name in (f"{name}/pyproject.toml", f"{name}/setup.cfg")
        ]
        files.extractall(directory, members=wanted, filter="data")
    return directory / name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
