"""The systemd units: valid, hardened, and their commands do the work of those of the Procfile."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from dev import procfile
from dev.ports import free_port
from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.core.settings import Settings
from tests.deployment.installation import READY, ROOT, Installation, run, status
from tests.deployment.programs import program
from tests.documented import DOCS, block
from tests.e2e.watching import is_open, woken
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room

pytestmark = pytest.mark.timeout(600)

UNITS = ROOT / "deploy" / "systemd"
BIN = "/opt/queue-manager-current/bin/"
ENVIRONMENT_OF_0_2 = Path("/opt/queue-manager")
SERVICES = sorted(UNITS.glob("*.service"))
PAGE = DOCS / "how-to" / "deploy.md"
MIGRATION = "migrate"
WEB_GRACE = 20  # seconds; it completes a request in up to 15 s
MAX_EXPOSURE = 20  # tenths, by the scale of `systemd-analyze security`


def name_of(service: Path) -> str:
    return service.stem.removeprefix("queue-manager-").removesuffix("@")


def values(service: Path) -> dict[str, str]:
    """Return the directives of a unit; of a repeated one the last."""
    lines = [line.partition("=") for line in service.read_text().splitlines() if "=" in line and line[0] != "#"]
    return {name: value for name, _, value in lines}


def command(service: Path) -> list[str]:
    """Return the command of a unit as systemd starts instance 1."""
    return shlex.split(values(service)["ExecStart"].replace("%i", "1").replace("%H", socket.gethostname()))


@pytest.fixture
def unit_path(tmp_path: Path) -> Path:
    """A directory with the units, whose programs exist everywhere."""
    for file in UNITS.rglob("*"):
        if file.is_file():
            copy = tmp_path / file.relative_to(UNITS)
            copy.parent.mkdir(exist_ok=True)
            copy.write_text(
                file.read_text().replace(BIN + "celery", "/bin/true").replace(BIN + "queue-manager", "/bin/true")
            )
    return tmp_path


@pytest.mark.deploy
def test_the_units_are_valid(unit_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEMD_UNIT_PATH", f"{unit_path}:")
    units = [unit_path / one.name.replace("@.", "@1.") for one in (*SERVICES, UNITS / "queue-manager.target")]
    analyze = program("systemd-analyze", package="systemd")
    assert run(analyze, "verify", "--man=no", "--recursive-errors=yes", *units) == ""


@pytest.mark.deploy
@pytest.mark.parametrize("service", SERVICES, ids=name_of)
def test_the_units_are_hardened(service: Path, unit_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEMD_UNIT_PATH", f"{unit_path}:")
    analyze = program("systemd-analyze", package="systemd")
    unit = unit_path / service.name.replace("@.", "@1.")
    run(analyze, "security", "--no-pager", "--offline=yes", f"--threshold={MAX_EXPOSURE}", unit)


def allowed_system_calls() -> set[str]:
    """Return what `SystemCallFilter` of the units allows."""
    filters = (UNITS / "queue-manager-.service.d" / "common.conf").read_text()
    assert "SystemCallFilter=@system-service\nSystemCallFilter=~@privileged @resources\n" in filters
    return system_calls("@system-service") - system_calls("@privileged") - system_calls("@resources")


def system_calls(name: str) -> set[str]:
    """Return the system calls of a set of systemd's, and of the sets in it."""
    analyze = program("systemd-analyze", package="systemd")
    lines = [line.strip() for line in run(analyze, "--no-pager", "syscall-filter", name).splitlines()[1:]]
    return {
        call for one in lines if not one.startswith("#") for call in (system_calls(one) if one[:1] == "@" else [one])
    }


@pytest.mark.deploy
def test_the_processes_make_no_system_call_that_the_units_forbid(
    installation: Installation, clean: Servers, tmp_path: Path
) -> None:
    """The units themselves cannot run where systemd is not the first process."""
    port = free_port()
    env = {"QM_WEB_PORT": str(port), "QM_SNOOZE_SCAN_SECONDS": "1"}
    strace = program("strace", package="strace")
    commands = {name_of(one): shlex.join(command(one)).replace(BIN, "") for one in SERVICES}
    commands["worker"] = commands["worker"].replace("--exclude-queues scans,jobs", "--concurrency 2")
    traces = {name: tmp_path / f"{name}.trace" for name in ("worker", "beat", "web")}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                installation.process(name, tmp_path, command=f"exec {strace} -f -qq -o {trace} {commands[name]}", **env)
            )
            for name, trace in traces.items()
        ]
        room = make_room(server_now() - seconds(1))
        eventually(lambda: is_open(room))
        eventually(lambda: status(port, "/readyz") == 200)
        for process in processes:
            process.end()
    for name, trace in traces.items():
        made = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(errors="replace"), re.MULTILINE))
        assert len(made) > 30, name
        assert made - allowed_system_calls() == set(), name


def test_the_units_run_the_commands_of_the_procfile() -> None:
    expected = {one.name: one.command.replace("@%h", "-%i@%H") for one in procfile.read(ROOT / "Procfile")}
    expected[MIGRATION] = expected.pop(procfile.RELEASE)
    assert {name_of(one): values(one)["ExecStart"].removeprefix(BIN) for one in SERVICES} == expected


def test_each_release_is_installed_next_to_the_one_that_the_units_run() -> None:
    (installed,) = re.findall(r"-m venv (\S+)", block(0, page=PAGE))
    target, link = Path(installed), Path(BIN).parent
    assert target.parent == link.parent
    assert len({target, link, ENVIRONMENT_OF_0_2}) == 3
    assert block(0, heading="systemd", page=PAGE).startswith(f"# ln -sfn {target.name} {link}\n")


@pytest.fixture
def called(tmp_path: Path) -> Callable[[str], list[list[str]]]:
    """A shell in which programs that would change this machine only record their arguments."""
    calls = tmp_path / "calls"
    for name in ("systemd-run", "systemctl", "ln", "cp"):
        stub = tmp_path / name
        stub.write_text(f'#!/bin/sh\nprintf "%s\\0" {name} "$@" "" >> {calls}\n')
        stub.chmod(0o755)

    def run_block(commands: str) -> list[list[str]]:
        run("bash", "-eu", "-c", f"PATH={tmp_path}\n" + re.sub("^# ", "", commands, flags=re.MULTILINE))
        return [call.split("\0") for call in calls.read_text().split("\0\0")[:-1]]

    return run_block


def test_documented_commands_have_the_settings_of_the_units(called: Callable[[str], list[list[str]]]) -> None:
    ((name, *options, command, argument),) = called(block(1, heading="systemd", page=PAGE))
    assert (name, command, argument) == ("systemd-run", f"{BIN}queue-manager", "doctor")
    units = values(UNITS / "queue-manager-.service.d" / "common.conf")
    assert {one for one in options if "=" in one} == {
        f"{name}={units[name]}" for name in ("User", "EnvironmentFile", "StateDirectory", "WorkingDirectory")
    }


def test_documented_upgrade_migrates_first_and_restarts_what_sends_ticks_last(
    called: Callable[[str], list[list[str]]],
) -> None:
    function, upgrade = (block(number, heading="systemd", page=PAGE) for number in (1, 2))
    _, migrate, link, copy, reload, *restarts = called(function + upgrade)
    release = Path(migrate[-2]).parents[1]
    assert [Path(migrate[-2]).name, migrate[-1]] == ["queue-manager", "migrate"]
    assert link == ["ln", "-sfn", release.name, "/opt/queue-manager-current"]
    assert (copy[0], reload) == ("cp", ["systemctl", "daemon-reload"])
    restarted = [[re.sub("^queue-manager-|@.*", "", unit) for unit in units] for _, _, *units in restarts]
    assert restarted == [["worker", "jobs"], ["scans"], ["beat"], ["web"]]


def test_systemd_waits_longer_for_workers_than_they_wait_for_their_tasks() -> None:
    shutdown = Settings.model_fields["qm_shutdown_seconds"].default
    workers = [values(one) for one in SERVICES if name_of(one) in ("worker", "jobs", "scans")]
    assert [(one["KillMode"], float(one["TimeoutStopSec"])) for one in workers] == [("mixed", shutdown + 10)] * 3


def test_systemd_waits_until_a_request_of_the_web_process_is_completed() -> None:
    assert float(values(UNITS / "queue-manager-web.service")["TimeoutStopSec"]) == WEB_GRACE


@pytest.mark.deploy
def test_the_commands_of_the_units_wake_rooms_and_stop_in_order(
    installation: Installation, clean: Servers, tmp_path: Path
) -> None:
    port = free_port()
    env = {
        "QM_WEB_PORT": str(port),
        "FLOWER_PORT": str(free_port()),
        "FLOWER_UNAUTHENTICATED_API": "1",
        "QM_SNOOZE_SCAN_SECONDS": "1",
    }
    commands = {name_of(one): shlex.join(command(one)).replace(BIN, "") for one in SERVICES}
    migrated = installation.run("sh", "-c", commands.pop(MIGRATION), cwd=tmp_path, **env)
    assert migrated.returncode == 0, migrated.stderr
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(installation.process(name, tmp_path, command=f"exec {one}", **env))
            for name, one in commands.items()
        }
        assert {*READY} <= {*processes}
        rooms = [make_room(server_now() - seconds(1)) for _ in range(3)]
        eventually(lambda: all(map(is_open, rooms)))
        assert [len(moments) for moments in woken(rooms)] == [1, 1, 1]
        eventually(lambda: status(port, "/readyz") == 200)
        for process in processes.values():  # as with KillMode=mixed: the main processes only
            os.kill(process.pid, signal.SIGTERM)
        assert {name: process.wait(30) for name, process in processes.items()} == dict.fromkeys(processes, 0)
        assert [name for name, process in processes.items() if process.exists()] == []
