"""No server outlives its parent: the keeper ends them however the parent ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dev.children import spawn
from dev.keeper import read_until_parent_is_gone
from dev.processes import ProcessGroup, started_at
from tests.eventually import eventually

SERVERS_AND_A_FAMILY = """
import pathlib, sys
from dev.children import spawn
from dev.servers import Mongo, Valkey
valkey, mongo = Valkey(pathlib.Path(sys.argv[1], "valkey")), Mongo(pathlib.Path(sys.argv[1], "mongo"))
valkey.start()
mongo.start()
family = spawn(["sh", "-c", "sleep 300 & sleep 300"])
print(valkey.pid, mongo.pid, family.pid, flush=True)
sys.stdin.read()
"""
KEEPER_KILLED = """
import os, signal, sys
from dev.children import keeper_pipe, spawn
first = spawn(["sleep", "300"])
os.kill(keeper_pipe._keeper.pid, signal.SIGKILL)
keeper_pipe._keeper.wait()
second = spawn(["sleep", "300"])
print(first.pid, second.pid, flush=True)
sys.stdin.read()
"""
FORKED = """
import os, sys, time
from dev.children import spawn
child = spawn(["sleep", "300"])
if not (fork := os.fork()):
    time.sleep(60)
print(child.pid, fork, flush=True)
sys.stdin.read()
"""


@contextmanager
def parent(script: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Run `script` until it has printed the numbers of its processes."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert pids
        yield process, pids
        process.kill()


def is_gone(pid: int) -> bool:
    return not ProcessGroup(pid, started_at(pid) or "", grace=0).exists()


def test_a_killed_parent_leaves_no_server_and_no_grandchild(tmp_path: Path) -> None:
    with parent(SERVERS_AND_A_FAMILY, str(tmp_path)) as (process, pids):
        assert len(pids) == 3
        process.send_signal(signal.SIGKILL)
        eventually(lambda: all(is_gone(pid) for pid in pids))


def test_a_parent_that_just_ends_leaves_nothing(tmp_path: Path) -> None:
    with parent(SERVERS_AND_A_FAMILY, str(tmp_path)) as (process, pids):
        process.communicate()
        assert all(is_gone(pid) for pid in pids)


def test_a_killed_keeper_is_replaced_and_its_successor_knows_everything() -> None:
    with parent(KEEPER_KILLED) as (process, pids):
        process.send_signal(signal.SIGKILL)
        eventually(lambda: all(is_gone(pid) for pid in pids))


def test_a_surviving_fork_does_not_hide_the_death_of_the_parent() -> None:
    with parent(FORKED) as (process, [child, fork]):
        process.send_signal(signal.SIGKILL)
        eventually(lambda: is_gone(child))
        os.kill(fork, signal.SIGKILL)


def test_processes_get_sigterm_and_those_that_ignore_it_sigkill(tmp_path: Path) -> None:
    said, deaf_is_up = tmp_path / "said", tmp_path / "deaf_is_up"
    for_ever = "while :; do sleep 0.05; done"
    polite = spawn(["sh", "-c", f"trap 'echo bye > {said}; exit 7' TERM; echo up > {said}; {for_ever}"])
    deaf = spawn(["sh", "-c", f"trap '' TERM; echo up > {deaf_is_up}; {for_ever}"])
    eventually(lambda: said.exists() and deaf_is_up.exists())
    polite.end()
    deaf.end(grace=0.1)
    assert (polite.wait(), said.read_text()) == (7, "bye\n")
    assert deaf.wait() == -signal.SIGKILL


def test_a_reused_process_id_is_not_signalled() -> None:
    stranger = spawn(["sleep", "300"])
    former = ProcessGroup(stranger.pid, "another time", grace=0.1)
    former.end()
    former.kill()
    assert stranger.poll() is None
    stranger.kill()


def test_keeper_ends_processes_it_still_knows() -> None:
    lines = [
        '{"keep": 1, "started": "a", "grace": 1.0}',
        '{"keep": 2, "started": "b", "grace": 1.0}',
        '{"keep": 3, "started": "c", "grace": 1.0}',
        '{"forget": 2}',
    ]
    assert [group.pid for group in read_until_parent_is_gone(lines)] == [1, 3]


@pytest.mark.parametrize(("command", "code"), [("/no/such/program", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_be_run_is_reported(tmp_path: Path, command: str, code: int) -> None:
    with (tmp_path / "log").open("wb") as log:
        child = spawn([command], stderr=log)
    assert child.wait(20) == code
    child.end()
    assert command in (tmp_path / "log").read_text()
