"""The supervisor restarts processes that die, labels their output, and ends all of them together."""

from __future__ import annotations

import errno
import io
import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dev import procfile
from dev.children import Child, spawn
from dev.output import LONGEST_LINE, LogStream
from dev.procfile import Process, ProcfileError
from dev.supervisor import Supervisor
from queue_manager.core.clock import seconds
from queue_manager.core.retry import RetryPolicy
from tests.eventually import eventually
from tests.pace import promptly

QUICK = RetryPolicy(max_attempts=None, base=seconds(0.05), cap=seconds(0.2))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def supervise(root: Path, output: io.StringIO, **commands: str) -> Supervisor:
    processes = [Process(name, command) for name, command in commands.items()]
    log = LogStream(commands, stream=output)
    return Supervisor(processes, environment=os.environ, root=root, log=log, restart=QUICK)


def test_a_process_that_dies_is_restarted_after_growing_delays(tmp_path: Path) -> None:
    output = io.StringIO()
    with supervise(tmp_path, output, dying="echo alive; exit 3") as supervisor:
        supervisor.start()
        eventually(lambda: output.getvalue().count("alive") >= 4)
    said = [line for line in output.getvalue().splitlines() if "starts again" in line]
    assert said[:3] == [f"dying | (exited with 3; starts again in {wait} s)" for wait in ("0.05", "0.1", "0.2")]


def test_a_process_that_cannot_be_started_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = count(1)

    def spawn_second(*command: Any, **options: Any) -> Child:
        if next(attempts) == 1:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")  # the limit of processes
        return spawn(*command, **options)

    monkeypatch.setattr("dev.supervisor.spawn", spawn_second)
    output = io.StringIO()
    with supervise(tmp_path, output, late="echo up; sleep 300") as supervisor:
        supervisor.start()
        eventually(lambda: "late | up" in output.getvalue())
    assert output.getvalue().splitlines()[:2] == [
        "late | could not be started: Resource temporarily unavailable",
        "late | (exited with 126; starts again in 0.05 s)",
    ]


def test_everything_ends_within_the_grace_period_including_processes_that_ignore_signals(tmp_path: Path) -> None:
    deaf = "trap '' TERM; sh -c 'trap \"\" TERM; echo up; while :; do sleep 0.1; done'; true"
    output = io.StringIO()
    supervisor = supervise(tmp_path, output, deaf=deaf, polite="sleep 300")
    supervisor.start()
    eventually(lambda: "up" in output.getvalue())
    with promptly(2):
        supervisor.stop(grace=0.5)
    assert "deaf   | (killed by SIGKILL)" in output.getvalue()
    assert "polite | (killed by SIGTERM)" in output.getvalue()


def test_a_single_command_receives_sigterm_itself_and_once(tmp_path: Path) -> None:
    (tmp_path / "polite.py").write_text(
        "import signal, sys, time\n"
        "asked = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: (asked.append(1), print('asked', flush=True)))\n"
        "print('up', flush=True)\n"
        "while not asked: time.sleep(0.02)\n"
        "time.sleep(0.2)\ntime.sleep(0.2)\n"  # in which a second signal would come
        "sys.exit(5)\n"
    )
    output = io.StringIO()
    with supervise(tmp_path, output, polite=f"GREETING=1 {sys.executable} polite.py") as supervisor:
        supervisor.start()
        eventually(lambda: "up" in output.getvalue())
    assert output.getvalue().splitlines() == ["polite | up", "polite | asked", "polite | (exited with 5)"]


def test_unfinished_and_very_long_lines_are_forwarded(tmp_path: Path) -> None:
    output = io.StringIO()
    command = f"""{sys.executable} -c 'import sys; sys.stdout.write("x" * {LONGEST_LINE + 10} + "\\n" + "cut")'"""
    supervisor = supervise(tmp_path, output, odd=command)
    assert supervisor.run(Process("odd", command)) == 0
    assert [len(line) for line in output.getvalue().splitlines()] == [LONGEST_LINE + 6, 16, 9]


def test_names_are_padded_and_colours_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain, coloured, refused = io.StringIO(), Terminal(), Terminal()
    LogStream(["web", "worker"], stream=plain).write("web", "hello")
    LogStream(["web", "worker"], stream=coloured).write("web", "hello")
    monkeypatch.setenv("NO_COLOR", "1")
    LogStream(["web", "worker"], stream=refused).write("web", "hello")
    assert plain.getvalue() == refused.getvalue() == "web    | hello\n"
    assert coloured.getvalue() == "\033[36mweb    |\033[0m hello\n"


def test_a_procfile_is_read_in_its_order() -> None:
    text = "# comment\n\nrelease: migrate\nworker: A=1 celery worker --queues 'a:b'\n"
    assert procfile.parse(text) == [
        Process("release", "migrate"),
        Process("worker", "A=1 celery worker --queues 'a:b'"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("web: run\njust words\n", "Procfile, line 2: 'just words' is not `name: command`"),
        ("web:\n", "line 1: 'web:' is not `name: command`"),
        ("web: a\nweb: b\n", "line 2: there already is a process 'web'"),
        ("# nothing\n", "no process in it"),
    ],
)
def test_a_wrong_procfile_names_its_line(text: str, message: str) -> None:
    with pytest.raises(ProcfileError) as caught:
        procfile.parse(text)
    assert message in str(caught.value)


def test_a_missing_procfile_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcfileError, match="Procfile: No such file"):
        procfile.read(tmp_path / "Procfile")
