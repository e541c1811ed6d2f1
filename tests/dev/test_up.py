"""`make up` from start to end, on a checkout that is a Procfile alone."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, Self

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dev import environment, procfile
from dev.processes import started_at
from dev.up import DEMO, addresses, demo_processes, without_demo_jobs
from tests.eventually import eventually
from tests.pace import promptly

# Ports of each run's own instead of the well-known ones, which other runs may take at the same moment.
START = """
import pathlib, sys
from dev import up
from dev.ports import free_port
up.REDIS_PORT, up.MONGO_PORT = free_port(), free_port()
sys.exit(up.main(root=pathlib.Path(), logs="--logs" in sys.argv))
"""
CTRL_C_AT_IMPORT = """
import os, signal, sys
class CtrlC:
    def find_spec(name, path=None, target=None):
        if name == "dev.up":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, CtrlC)
"""
ROOT = Path(__file__).parents[2]
WITHIN = 60.0  # seconds for a start, on a busy machine


@contextmanager
def up(root: Path, name: str = "output", *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start everything at `root`, its output in a file."""
    output = root / name
    with output.open("wb") as log:
        process = start(root, log.fileno(), *arguments)
    with process:
        try:
            yield process, output
        finally:
            process.kill()


def start(root: Path, output: int, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start everything with nothing set that would name other servers."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_URL")} | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", START, *arguments],
        cwd=root,
        env=kept | environment,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


class Terminal:
    """A terminal with `make up` on it; a context manager that closes it."""

    def __init__(self, root: Path) -> None:
        self._controller, terminal = pty.openpty()
        self.resize(80, 24)
        self.process = start(root, terminal, TERM="xterm-256color")
        os.close(terminal)
        self._written = bytearray()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._controller, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def text(self) -> str:
        return self._written.decode(errors="replace")

    def forget(self) -> None:
        self._written.clear()

    def _read(self) -> None:
        with suppress(OSError):  # the terminal has no other side any more
            while data := os.read(self._controller, 65_536):
                self._written += data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._controller)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "Procfile").write_text("release: echo released at $MONGO_DB_URL\nworker: echo $$ > pid; sleep 300\n")
    return tmp_path


def is_running(output: Path) -> bool:
    return "Ctrl-C stops everything" in output.read_text()


def worker(checkout: Path) -> int:
    written = checkout / "pid"
    return int(eventually(lambda: written.exists() and written.read_text().strip()))


@pytest.mark.smoke
@pytest.mark.processes
def test_make_up_starts_refuses_a_second_start_and_stops_in_order(checkout: Path) -> None:
    with up(checkout) as (process, output):
        eventually(lambda: is_running(output), within=WITHIN)
        with up(checkout, "second") as (second, refused):
            assert second.wait(WITHIN) == 1
            assert f"already running in this checkout, as process {process.pid}" in refused.read_text()
        pid = worker(checkout)
        with promptly(10):
            process.send_signal(signal.SIGTERM)
            assert process.wait(WITHIN) == 0
    released = (checkout / ".devstack/logs/release.log").read_text()
    assert re.fullmatch(r"released at mongodb://127.0.0.1:\d+/queue_manager\?replicaSet=qm\n", released)
    lines = output.read_text().splitlines()
    assert lines[-1] == "stopped"
    assert lines.index("release: done") < lines.index("worker: starting") < lines.index("worker: killed by SIGTERM")
    assert started_at(pid) is None
    assert stat.S_IMODE((checkout / ".devstack").stat().st_mode) == 0o700
    [url] = re.findall(r"^export REDIS_URL=(\S+)$", (checkout / ".devstack/env").read_text(), re.MULTILINE)
    assert any(url in line for line in lines)


@pytest.mark.processes
def test_killed_make_up_leaves_nothing_and_can_be_started_again(checkout: Path) -> None:
    with up(checkout) as (process, output):
        eventually(lambda: is_running(output), within=WITHIN)
        pid = worker(checkout)
        process.kill()
    with up(checkout, "again") as (process, output):
        eventually(lambda: is_running(output), within=WITHIN)
        assert started_at(pid) is None
        process.send_signal(signal.SIGINT)
        eventually(lambda: "stopping" in output.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 0


@pytest.mark.processes
def test_a_server_that_dies_is_started_again(checkout: Path) -> None:
    with up(checkout) as (process, output):
        eventually(lambda: is_running(output), within=WITHIN)
        [url] = re.findall(r"redis://\S+", output.read_text())
        # Without a retry: the client takes the lost connection for a failure and would shut the next server down too.
        with Redis.from_url(url, retry=Retry(NoBackoff(), 0)) as client:
            client.shutdown(nosave=True)
        eventually(lambda: output.read_text().count("Valkey: ready") == 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert "Valkey: it ended" in output.read_text()


@pytest.mark.processes
def test_a_screen_is_drawn_on_a_terminal_and_its_content_restored(checkout: Path) -> None:
    with Terminal(checkout) as terminal:
        eventually(lambda: re.search(r"summary +.*running since", terminal.text()), within=WITHIN)
        worker(checkout)
        assert terminal.text().startswith("\033[?1049h")
        terminal.resize(40, 24)
        terminal.forget()
        eventually(lambda: "mongodb://127.0.0.1:" in terminal.text() and "\u2026" in terminal.text())
        terminal.process.send_signal(signal.SIGINT)
        eventually(lambda: "stopping" in terminal.text())
        assert terminal.process.wait(10) == 0
        eventually(lambda: terminal.text().endswith("\033[?1049lstopped\r\n"))
        assert "released at" not in terminal.text()


@pytest.mark.processes
def test_a_second_signal_on_a_terminal_ends_the_run_immediately(checkout: Path) -> None:
    (checkout / "Procfile").write_text("worker: trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done\n")
    with Terminal(checkout) as terminal:
        pid = worker(checkout)
        terminal.process.send_signal(signal.SIGINT)
        eventually(lambda: "stopping" in terminal.text())
        terminal.process.send_signal(signal.SIGINT)
        with promptly(4):
            terminal.process.wait()
        assert started_at(pid) is None
        eventually(lambda: terminal.text().endswith("\033[?1049lstopped\r\n"))


@pytest.mark.processes
def test_everything_ends_with_its_terminal(checkout: Path) -> None:
    controller, terminal = pty.openpty()
    process = start(checkout, terminal, TERM="xterm")
    os.close(terminal)
    with process:
        try:
            pid = worker(checkout)
            os.close(controller)
            process.send_signal(signal.SIGHUP)  # as the system does, to the programs of a terminal's session
            assert process.wait(10) == 0
        finally:
            process.kill()
    assert started_at(pid) is None


@pytest.mark.processes
def test_a_file_gets_plain_lines_and_the_log_files_the_output(checkout: Path) -> None:
    (checkout / "Procfile").write_text("worker: echo hello; echo '12:00:00.1 [warning  ] too hot'; sleep 300\n")
    with up(checkout) as (process, output):
        eventually(lambda: "worker: too hot" in output.read_text(), within=WITHIN)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert "\033" not in output.read_text()
    assert "hello" not in output.read_text()
    log = checkout / ".devstack/logs/worker.log"
    assert log.read_text().splitlines() == ["hello", "12:00:00.1 [warning  ] too hot", "(killed by SIGTERM)"]


@pytest.mark.processes
def test_all_logs_are_shown_on_request(checkout: Path) -> None:
    with up(checkout, "output", "--logs") as (process, output):
        eventually(lambda: is_running(output), within=WITHIN)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert re.search(r"release +\| released at mongodb://", output.read_text())
    assert (checkout / ".devstack/logs/release.log").read_text().startswith("released at mongodb://")


@pytest.mark.processes
def test_a_start_can_be_stopped_halfway(checkout: Path) -> None:
    with up(checkout) as (process, output):
        eventually(lambda: "MongoDB: starting" in output.read_text(), within=WITHIN)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    assert output.read_text().endswith("stopped\n")
    assert not (checkout / "pid").exists()


def test_ctrl_c_before_anything_is_started_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CTRL_C_AT_IMPORT)
    stopped = subprocess.run(
        [sys.executable, "-m", "dev"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (stopped.returncode, stopped.stdout, stopped.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_an_invalid_port_is_refused_with_its_setting(checkout: Path, port: str) -> None:
    output = checkout / "output"
    servers = {"MONGO_DB_URL": "mongodb://127.0.0.1:1/product", "REDIS_URL": "redis://127.0.0.1:1"}
    with output.open("wb") as log, start(checkout, log.fileno(), **servers, QM_WEB_PORT=port) as process:
        try:
            assert process.wait(WITHIN) == 1
        finally:
            process.kill()
    assert f"make up: QM_WEB_PORT='{port}': must be a port from 1 to 65535, such as 6002\n" in output.read_text()


@pytest.mark.processes
def test_a_failed_release_stops_the_start_with_its_output(checkout: Path) -> None:
    (checkout / "Procfile").write_text("release: echo no such index; exit 4\nworker: touch started\n")
    with up(checkout) as (process, output):
        assert process.wait(WITHIN) == 1
    text = output.read_text()
    assert "release | no such index" in text
    assert "`echo no such index; exit 4` exited with 4" in text
    assert not (checkout / "started").exists()


def test_settings_of_the_user_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("QM_CONVERSATIONS=false\nFLOWER_UNAUTHENTICATED_API=0\nAPP_ENV=from-file\n")
    monkeypatch.delenv("QM_CONVERSATIONS", raising=False)
    monkeypatch.setenv("APP_ENV", "staging")
    given = environment.given(tmp_path)
    children = environment.for_children(given, mongo_url="m", redis_url="r", flower_port=1, web_port=2)
    assert children["QM_CONVERSATIONS"] == "false"
    assert children["APP_ENV"] == "staging"
    assert children["FLOWER_UNAUTHENTICATED_API"] == "0"
    assert children["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


@pytest.mark.processes
def test_a_busy_web_port_is_named_and_the_box_shows_the_port_in_use(checkout: Path) -> None:
    serve = f"{sys.executable} -m http.server --bind 127.0.0.1 $QM_WEB_PORT"
    (checkout / "Procfile").write_text(f"web: {serve}\n")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        taken = busy.getsockname()[1]
        (checkout / ".env").write_text(f"QM_WEB_PORT={taken}\n")
        with up(checkout) as (process, output):
            eventually(lambda: is_running(output), within=WITHIN)
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
    text = output.read_text()
    [used] = re.findall(rf"Dashboard: port {taken} is busy, using (\d+)", text)
    assert re.search(rf"Dashboard +http://127\.0\.0\.1:{used}\b", text)
    assert "Flower" not in text.partition("Queue Manager")[2]


def test_defaults_suit_a_laptop() -> None:
    children = environment.for_children(
        {"NODE_ENV": "test"}, mongo_url="m", redis_url="r", flower_port=5555, web_port=6003
    )
    assert children["QM_CONVERSATIONS"] == "true"
    assert (children["QM_HOOKS"], children["QM_WEB_PORT"]) == ("true", "6003")
    assert "APP_ENV" not in children  # NODE_ENV says it
    assert children["FLOWER_UNAUTHENTICATED_API"] == "1"


def test_flower_is_shown_at_the_address_of_the_procfile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLOWER_ADDRESS", "0.0.0.0")
    children = environment.for_children(
        environment.given(tmp_path), mongo_url="m", redis_url="r", flower_port=5555, web_port=6003
    )
    assert addresses(children, {"Flower": 5555})["Flower"] == "http://127.0.0.1:5555"
    assert children["FLOWER_UNAUTHENTICATED_API"] == "1"
    [flower] = [process for process in procfile.read(ROOT / "Procfile") if process.name == "flower"]
    assert "--address=127.0.0.1" in flower.command.split()


def test_no_system_is_switched_on_in_a_database_of_the_user() -> None:
    servers: dict[str, Any] = {"mongo_url": "m", "redis_url": "r", "flower_port": 1, "web_port": 2}
    children = environment.for_children({"MONGO_DB_URL": "m"}, **servers)
    assert not set(children) & set(environment.EVERYTHING_ON)
    assert environment.for_children({}, **servers).items() >= environment.EVERYTHING_ON.items()


@pytest.mark.parametrize("name", ["REDIS_URL", "QM_QUEUE_REDIS_URL"])
def test_a_redis_of_the_user_gets_no_demo_and_no_message_queue(name: str) -> None:
    given = {name: "redis://cache:6379/0"}
    servers: dict[str, Any] = {"mongo_url": "m", "redis_url": "r", "flower_port": 1, "web_port": 2}
    children = environment.for_children(given, **servers)
    assert "QM_MESSAGE_QUEUE" not in children
    assert children["QM_CONVERSATIONS"] == "true"
    assert [process.command.split()[-1] for process in demo_processes(given)] == ["--no-messages"]


def test_the_demo_does_not_run_in_a_database_of_the_user() -> None:
    assert demo_processes({"MONGO_DB_URL": "m"}) == []
    assert demo_processes({}) == [DEMO]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, ""),
        ({"JOBS_IMPORTS": '["dev.demo_jobs", "billing"]'}, ""),
        ({"JOBS_IMPORTS": "billing"}, "demo jobs are off, because JOBS_IMPORTS is set"),
        ({"JOBS_IMPORTS": "billing", "MONGO_DB_URL": "m"}, ""),
    ],
)
def test_a_demo_without_its_jobs_reports_the_reason(given: dict[str, str], reason: str) -> None:
    assert without_demo_jobs(given) == reason


class TestShellFile:
    def written(self, file: Path, given: dict[str, str]) -> dict[str, str]:
        """Return what a shell without these variables gets from the file of a run."""
        url = given.get("MONGO_DB_URL", "mongodb://127.0.0.1:1/qm?replicaSet=qm&w=1")
        children = environment.for_children(
            given, mongo_url=url, redis_url="redis://127.0.0.1:2/0", flower_port=1, web_port=2
        )
        environment.write_for_shells(file, given, children)
        show = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
        said = subprocess.check_output(["sh", "-c", f'. {file}; exec "$@"', "sh", *show], env={}, text=True)
        return {name: value for name, value in json.loads(said).items() if name in {*children, "DEVSTACK"}}

    def test_a_shell_gets_the_systems_and_jobs_of_the_processes(self, tmp_path: Path) -> None:
        given = {"QM_SYSTEMS": "billing.trial_end", "PYTHONPATH": "/home/ada/it's here", "QM_PROJECTS": "false"}
        written = self.written(tmp_path / "env", given)
        assert json.loads(written.pop("DEVSTACK")).keys() == written.keys() - given.keys()
        assert written == {
            **{name: value for name, value in environment.EVERYTHING_ON.items() if name != environment.JOBS_IMPORTS},
            **given,
            "APP_ENV": "development",
            "MONGO_DB_URL": "mongodb://127.0.0.1:1/qm?replicaSet=qm&w=1",
            "REDIS_URL": "redis://127.0.0.1:2/0",
        }

    def test_shell_file_has_no_server_and_no_secret_of_the_user(self, tmp_path: Path) -> None:
        given = {"MONGO_DB_URL": "mongodb://ada:secret@db/product", "QM_API_KEYS": "[secret]"}
        assert given.keys().isdisjoint(self.written(tmp_path / "env", given))
        text = (tmp_path / "env").read_text()
        assert "secret" not in text
        assert re.search("^# MONGO_DB_URL, QM_API_KEYS$", text, re.MULTILINE)

    def test_a_shell_gets_all_settings_of_the_user(self, tmp_path: Path) -> None:
        given = {
            "QUEUE_NAME": "mine",
            "MAX_ATTEMPTS": "7",
            "QM_DRY_RUN": "trial-end",
            "QM_BATCHING": "false",
            "QM_ALERT_AFTER_SECONDS": "5",
            "JOBS_IMPORTS": "billing",
            "NODE_ENV": "test",
        }
        written = self.written(tmp_path / "env", given)
        assert written.items() >= given.items()
        assert json.loads(written["DEVSTACK"]).keys().isdisjoint(given)

    def test_a_shell_does_not_import_the_jobs_of_the_demo(self, tmp_path: Path) -> None:
        assert "JOBS_IMPORTS" not in self.written(tmp_path / "env", {})
        assert self.written(tmp_path / "env", {"JOBS_IMPORTS": "dev.demo_jobs"})["JOBS_IMPORTS"] == "dev.demo_jobs"

    def test_the_settings_of_the_file_do_not_count_as_those_of_the_user(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in environment.SETTINGS:
            monkeypatch.delenv(name, raising=False)
        before = environment.given(tmp_path)
        for name, value in self.written(tmp_path / "env", {"PYTHONPATH": "src"}).items():
            monkeypatch.setenv(name, value)
        assert environment.given(tmp_path) == {**before, "PYTHONPATH": "src"}
        of_the_user = {"MONGO_DB_URL": "mongodb://db/product", "REDIS_URL": "redis://cache/0", "QM_PROJECTS": "false"}
        for name, value in of_the_user.items():
            monkeypatch.setenv(name, value)
        given = environment.given(tmp_path)
        assert given == {**before, "PYTHONPATH": "src", **of_the_user}
        children = environment.for_children(given, mongo_url="m", redis_url="r", flower_port=1, web_port=2)
        assert {name for name in environment.EVERYTHING_ON if name in children} == {"QM_PROJECTS"}
