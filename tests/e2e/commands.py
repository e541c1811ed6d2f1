"""Running `queue-manager` as a user does: its output on a terminal, and its environment."""

from __future__ import annotations

import logging
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from typer.testing import CliRunner

from queue_manager.cli.commands import cli
from tests.e2e.celery_processes import ROOT
from tests.forked import fork

COMMAND = [sys.executable, "-c", "from queue_manager.cli import main; main()"]


def environment(**env: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **env}


def queue_manager(
    *arguments: str, cwd: Path | str | None = None, answer: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, which is forked from one that has imported the modules."""
    with TemporaryDirectory() as directory:
        stdin, stdout, stderr = (Path(directory, name) for name in ("stdin", "stdout", "stderr"))
        stdin.write_text(answer, encoding="utf-8")
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        process = fork(arguments, env=environment(**env), cwd=cwd or os.getcwd(), **streams)
        try:
            code = process.wait()
        finally:
            process.kill()  # if the test ran out of time
        return subprocess.CompletedProcess(arguments, code, stdout.read_text("utf-8"), stderr.read_text("utf-8"))


def invoke(*arguments: str, answer: str = "", columns: int = 200) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, with its settings; tests may replace functions. A wrong setting raises."""
    with _same_logging_and_signals():
        result = CliRunner(env={"COLUMNS": str(columns)}).invoke(
            cli, arguments, input=answer, prog_name="queue-manager"
        )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


@contextmanager
def _same_logging_and_signals() -> Iterator[None]:
    """Undo what a command changes for its process, which ends with it otherwise: log lines and SIGTERM."""
    root, strategy = logging.getLogger(), logging.getLogger("celery.worker.strategy")
    handlers, levels = list(root.handlers), (root.level, strategy.level)
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        strategy.setLevel(levels[1])
        if signal.getsignal(signal.SIGTERM) is not terminate:  # only the main thread can change and undo it
            signal.signal(signal.SIGTERM, terminate)


@contextmanager
def handling_sigint(handler: Any) -> Iterator[None]:
    """Handle Ctrl-C in this way: a process that was started in the background ignores it."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt_second_call(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """Let the second call of a method raise what Ctrl-C does."""
    original, calls = getattr(owner, name), []

    def method(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, method)


def interrupted_after(count: int, undo: str) -> str:
    """Return what a command prints to stderr that changed `count` things until Ctrl-C."""
    return (
        f"queue-manager: interrupted; {count} changed before; the outcome is unknown; "
        f"to undo it within 10 minutes: queue-manager audit undo {undo}\n"
    )


def said_on_a_terminal(command: Sequence[str]) -> str:
    ours, theirs = pty.openpty()
    env = environment(TERM="xterm-256color")
    with subprocess.Popen(command, env=env, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 65_536):
                said += piece
        except OSError:  # Linux: the other end was closed
            pass
        process.wait(60)
    os.close(ours)
    return said.decode()
