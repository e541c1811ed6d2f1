"""Processes that are forked from one: replaced when they end, and ended with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dev.processes import children
from tests.eventually import eventually

pytestmark = pytest.mark.processes

PROGRAM = """
import os, signal, sys, time
from queue_manager.core import log
from queue_manager.core.child_processes import ChildProcesses

log.configure(level="INFO", form="json")
name = ChildProcesses(["first", "second"], fatal_code=3).run()
if name is None:
    print("all have ended")
    sys.exit()
def end(number, frame):
    os.write(1, f"{name} got {number}\\n".encode())  # in one piece, as the children share the output
    sys.exit()

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, end)
os.write(1, f"{name} runs\\n".encode())
"""
WAITS = "while True: time.sleep(60)"
EXECUTED = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"ended after exec\\n"), os._exit(0)))
os.write(1, b"runs after exec\\n")
time.sleep(120)
"""
EXECUTES = f"os.execv(sys.executable, [sys.executable, '-c', {EXECUTED!r}])"
WITHOUT_PRCTL = "import ctypes\nctypes.CDLL = lambda _: None\n"  # as on macOS


@contextmanager
def running(tmp_path: Path, body: str, *, before: str = "") -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run the program, whose children execute `body`; yield its process and its output."""
    output = tmp_path / "output"
    with open(output, "wb") as file:
        process = subprocess.Popen([sys.executable, "-c", before + PROGRAM + body], stdout=file, stderr=file)
    try:
        yield process, output
    finally:
        process.kill()
        process.wait()


def count(output: Path, text: str) -> int:
    return output.read_text().count(text)


def state_of(pid: int) -> str:
    """Return the state of a process as `ps` shows it: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_child_that_was_killed_is_replaced(tmp_path: Path) -> None:
    with running(tmp_path, WAITS) as (process, output):
        eventually(lambda: count(output, "runs") == 2)
        first, second = children(process.pid)

        os.kill(first, signal.SIGKILL)

        eventually(lambda: count(output, "first runs") == 2)
        assert first not in children(process.pid)
        assert second in children(process.pid)
        assert count(output, "second runs") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_to_all_children_once(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path, WAITS) as (process, output):
        eventually(lambda: count(output, "runs") == 2)

        process.send_signal(number)

        assert process.wait(20) == 0
        lines = output.read_text().splitlines()
        assert sorted(lines[2:4]) == [f"first got {number.value}", f"second got {number.value}"]
        assert lines[4:] == ["all have ended"]


def test_ctrl_z_stops_all_processes_until_they_are_continued(tmp_path: Path) -> None:
    with running(tmp_path, WAITS) as (process, output):
        eventually(lambda: count(output, "runs") == 2)
        family = [process.pid, *children(process.pid)]

        process.send_signal(signal.SIGTSTP)

        eventually(lambda: all(state_of(pid) == "T" for pid in family))
        process.send_signal(signal.SIGCONT)
        eventually(lambda: not any(state_of(pid) == "T" for pid in family))
        process.terminate()
        assert process.wait(20) == 0


def test_a_child_that_cannot_be_forked_is_started_later(tmp_path: Path) -> None:
    fail_twice = """
import os
fork, failures = os.fork, iter([11, 12])
def forking():
    if failure := next(failures, None):
        raise OSError(failure, os.strerror(failure))
    return fork()
os.fork = forking
"""
    with running(tmp_path, WAITS, before=fail_twice) as (_, output):
        eventually(lambda: count(output, "runs") == 2)
        failed = [json.loads(line) for line in output.read_text().splitlines() if "could not be started" in line]
        assert [(one["process"], one["error"], one["restart_in"]) for one in failed] == [
            ("first", "Resource temporarily unavailable", 1),
            ("second", "Cannot allocate memory", 1),
        ]


def test_ctrl_c_is_handled_by_the_parent_alone(tmp_path: Path) -> None:
    with running(tmp_path, WAITS) as (process, output):
        eventually(lambda: count(output, "runs") == 2)
        assert {os.getpgid(child) for child in children(process.pid)} == {*children(process.pid)}


def test_processes_that_a_killed_child_leaves_behind_are_reaped(tmp_path: Path) -> None:
    body = f"""
import subprocess
if name == "first":
    subprocess.Popen(["sleep", "0.1"])
{WAITS}"""
    become_reaper = "import ctypes; ctypes.CDLL(None).prctl(36, 1)\n"  # PR_SET_CHILD_SUBREAPER, as a first process is
    with running(tmp_path, body, before=become_reaper) as (process, output):
        eventually(lambda: count(output, "runs") == 2)
        os.kill(children(process.pid)[0], signal.SIGKILL)

        eventually(lambda: count(output, "first runs") == 2)
        eventually(lambda: len(children(process.pid)) == 2)


def test_ended_children_are_noticed_although_sigchld_was_ignored(tmp_path: Path) -> None:
    ignore = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    with running(tmp_path, WAITS, before=ignore) as (process, output):
        eventually(lambda: count(output, "runs") == 2)
        os.kill(children(process.pid)[0], signal.SIGKILL)
        eventually(lambda: count(output, "first runs") == 2)

        process.terminate()

        assert process.wait(20) == 0


@pytest.mark.parametrize("before", ["", WITHOUT_PRCTL])
def test_children_end_if_the_parent_is_killed(before: str, tmp_path: Path) -> None:
    with running(tmp_path, WAITS, before=before) as (process, output):
        eventually(lambda: count(output, "runs") == 2)

        process.kill()

        eventually(lambda: count(output, f"got {signal.SIGTERM.value}") == 2)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_children_end_with_the_parent_also_after_they_executed_another_program(tmp_path: Path) -> None:
    with running(tmp_path, EXECUTES) as (process, output):
        eventually(lambda: count(output, "runs after exec") == 2)

        process.kill()

        eventually(lambda: count(output, "ended after exec") == 2)


def test_a_child_that_cannot_start_ends_all(tmp_path: Path) -> None:
    body = f"if name == 'first': sys.exit(3)\n{WAITS}"
    with running(tmp_path, body) as (process, output):
        assert process.wait(20) == 3
        assert count(output, "first runs") == 1
        assert count(output, "all have ended") == 0


def test_a_replacement_that_cannot_start_ends_no_other_child(tmp_path: Path) -> None:
    mark = tmp_path / "has-started"
    body = f"""
if name == "first":
    if os.path.exists({str(mark)!r}): sys.exit(3)
    open({str(mark)!r}, "w").close()
{WAITS}"""
    with running(tmp_path, body) as (process, output):
        eventually(lambda: mark.exists() and count(output, "runs") == 2)
        first, second = children(process.pid)

        os.kill(first, signal.SIGKILL)

        eventually(lambda: count(output, "will be replaced") == 3)
        codes = [json.loads(line)["code"] for line in output.read_text().splitlines() if "will be replaced" in line]
        assert codes == [-signal.SIGKILL, 3, 3]
        assert second in children(process.pid)


def test_a_child_that_keeps_ending_is_replaced_after_growing_delays(tmp_path: Path) -> None:
    with running(tmp_path, f"if name == 'first': sys.exit()\n{WAITS}") as (_, output):
        eventually(lambda: count(output, "will be replaced") == 3)
        ends = [json.loads(line) for line in output.read_text().splitlines() if "will be replaced" in line]
        assert [(end["process"], end["restart_in"]) for end in ends] == [("first", 1), ("first", 2), ("first", 4)]
