"""The wheel has what production needs and nothing else, and its processes work outside of the repository."""

from __future__ import annotations

import os
import signal
import sys
import tarfile
import zipfile
from collections import Counter
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import pytest

from dev import procfile
from dev.ports import free_port
from models.database import server_now
from queue_manager.core.clock import seconds
from tests.deployment.installation import ROOT, Installation, run, status
from tests.e2e.watching import is_open, woken
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PACKAGES = ("models", "queue_manager", "services", "tasks")
SERVING = {"web": "/readyz", "flower": "/"}


def sources() -> list[str]:
    """Return the files of the packages."""
    files = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    return ["beat_schedule.py", *(str(file) for file in files if file.suffix != ".pyc")]


@pytest.mark.smoke
def test_the_wheel_contains_the_files_of_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert Counter(files) == Counter(sources())


def test_all_distributions_pass_the_checks_of_the_package_index(wheel: Path) -> None:
    files = sorted(wheel.parent.iterdir())
    release = version("queue-manager")
    assert [file.name for file in files] == [
        f"{name}-{release}{ending}"
        for name in ("queue_manager", "queue_manager_client")
        for ending in ("-py3-none-any.whl", ".tar.gz")
    ]
    assert run(sys.executable, "-m", "twine", "check", "--strict", *files).count("PASSED") == len(files)


def test_the_wheel_of_the_client_contains_its_modules_and_nothing_else(wheel: Path) -> None:
    (client,) = wheel.parent.glob("queue_manager_client-*.whl")
    with zipfile.ZipFile(client) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert Counter(files) == Counter(file for file in sources() if file.startswith("queue_manager/client/"))


def test_the_source_distribution_can_be_deployed(wheel: Path) -> None:
    (sdist,) = wheel.parent.glob("queue_manager-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2].partition("/")[0] for name in archive.getnames()}
    assert {"Procfile", "constraints.txt", "CHANGELOG.md", "LICENSE", "NOTICE"} <= names
    assert not names & {"tests", "dev", "benchmarks", "docs"}


def test_the_commands_of_the_procfile_work_in_an_empty_environment(
    installation: Installation, clean: Servers, tmp_path: Path
) -> None:
    ports = {name: free_port() for name in SERVING}
    env = {
        "QM_WEB_PORT": str(ports["web"]),
        "FLOWER_PORT": str(ports["flower"]),
        "FLOWER_UNAUTHENTICATED_API": "1",
        "QM_SNOOZE_SCAN_SECONDS": "1",
    }
    shown = installation.run("queue-manager", "--version", cwd=tmp_path)
    assert shown.stdout == f"queue-manager {version('queue-manager')}\n"
    migrated = installation.run("sh", "-c", installation.command("release"), cwd=tmp_path)
    assert migrated.returncode == 0, migrated.stderr

    names = [one.name for one in procfile.read(ROOT / "Procfile") if one.name != procfile.RELEASE]
    with ExitStack() as stack:
        processes = {name: stack.enter_context(installation.process(name, tmp_path, **env)) for name in names}
        rooms = [make_room(server_now() - seconds(1)) for _ in range(3)]
        eventually(lambda: all(map(is_open, rooms)))
        assert [len(moments) for moments in woken(rooms)] == [1, 1, 1]
        for name, path in SERVING.items():
            eventually(lambda name=name, path=path: status(ports[name], path) == 200)

        for process in processes.values():
            os.kill(process.pid, signal.SIGTERM)
        assert {name: process.wait(60) for name, process in processes.items()} == dict.fromkeys(names, 0)
