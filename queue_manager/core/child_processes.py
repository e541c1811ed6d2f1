"""Child processes that are forked from this one, so that they share the memory of what it has imported.

Guarantee: a child that ends is replaced after 1, 2, 4 … 30 s, and after 1 s again once it has lived for a minute. So is
one that the system could not fork.
SIGTERM, SIGINT and SIGQUIT are passed to all children; this process ends after them. They end with it, even if it is
killed. Ctrl-Z stops all of them, and they continue with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from queue_manager.core import log as logging
from queue_manager.core.clock import seconds
from queue_manager.core.retry import RetryPolicy

RESTART = RetryPolicy(max_attempts=None, base=seconds(1), cap=seconds(30))
HEALTHY_AFTER = 60.0  # seconds of life after which an end counts as the first one
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
PR_SET_PDEATHSIG = 1  # of Linux
AWAITED = (*FORWARDED, signal.SIGTSTP, signal.SIGCHLD, signal.SIGALRM)

log = logging.get_logger("QM/processes")


@dataclass
class _Child:
    name: str
    pid: int | None = None
    started_at: float = 0.0  # by the monotonic clock
    starts_at: float = 0.0
    ends: int = 0
    """How often in a row it could not be started, or did not live for `HEALTHY_AFTER`."""


class ChildProcesses:
    """Runs one child for each name. This process must have no threads, and start no other children."""

    def __init__(self, names: Sequence[str], *, fatal_code: int | None = None) -> None:
        """`fatal_code`: of a child that cannot start: all end if one ends with it soon after its first start."""
        self._children = [_Child(name) for name in names]
        self._fatal_code = fatal_code
        self._exit_code: int | None = None
        self._is_ending = False

    def run(self) -> str | None:
        """Start the children. Returns in each of them, with its name; in this process when all have ended, with None.

        Raises:
            SystemExit: a child ended with `fatal_code` at its first start, and all others have ended since.
        """
        # Signals are accepted one at a time: a handler could interrupt any code.
        signal.signal(signal.SIGCHLD, lambda *_: None)  # macOS discards a blocked signal that has no handler
        before = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
        parent = os.getpid()
        lifeline, held = os.pipe()  # only this process holds the second end, which is closed when it ends
        while not self._is_ending or any(child.pid for child in self._children):
            for child in self._to_start():
                if self._fork(child):
                    os.close(held)
                    _settle(child.name)
                    _end_with(parent, lifeline)
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
                    return child.name
            self._handle(self._next_signal())
        os.close(lifeline)
        os.close(held)
        signal.setitimer(signal.ITIMER_REAL, 0)
        while signal.SIGALRM in signal.sigpending():
            signal.sigwait([signal.SIGALRM])
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self._exit_code is not None:
            sys.exit(self._exit_code)
        return None

    def _to_start(self) -> list[_Child]:
        now = time.monotonic()
        return [one for one in self._children if one.pid is None and one.starts_at <= now and not self._is_ending]

    def _fork(self, child: _Child) -> bool:
        """Start a child. Returns True in the child."""
        child.started_at = time.monotonic()
        try:
            child.pid = os.fork()
        except OSError as error:  # the limit of processes, or of memory
            self._postpone(child, "A process could not be started", error=error.strerror)
        return child.pid == 0

    def _next_signal(self) -> int:
        """Wait for a signal; SIGALRM comes when a child is to be started again."""
        waits = [child.starts_at - time.monotonic() for child in self._children if child.pid is None]
        signal.setitimer(signal.ITIMER_REAL, 0 if self._is_ending or not waits else max(min(waits), 0.001))
        return signal.sigwait(AWAITED)

    def _handle(self, number: int) -> None:
        if number in FORWARDED:
            self._end(number)
        elif number == signal.SIGTSTP:
            self._stop()
        elif number == signal.SIGCHLD:
            self._reap()

    def _end(self, number: int) -> None:
        self._is_ending = True
        self._signal(number)

    def _stop(self) -> None:
        """Stop all processes until this one is continued: the terminal signals this one alone."""
        self._signal(signal.SIGSTOP, kill=os.killpg)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._signal(signal.SIGCONT, kill=os.killpg)

    def _signal(self, number: int, *, kill: Callable[[int, int], None] = os.kill) -> None:
        for child in self._children:
            if child.pid is not None:
                with suppress(ProcessLookupError):
                    kill(child.pid, number)

    def _reap(self) -> None:
        """Take note of the children that ended, and of what they left behind, as the first process of a container."""
        by_pid = {child.pid: child for child in self._children if child.pid}
        with suppress(ChildProcessError):  # none is left
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if child := by_pid.get(ended[0]):
                    self._ended(child, os.waitstatus_to_exitcode(ended[1]))

    def _ended(self, child: _Child, code: int) -> None:
        pid, child.pid = child.pid, None
        is_healthy = time.monotonic() - child.started_at > HEALTHY_AFTER
        if self._is_ending:
            return
        if code == self._fatal_code and child.ends == 0 and not is_healthy:
            self._exit_code = code
            self._end(signal.SIGTERM)
            return
        if is_healthy:
            child.ends = 0
        self._postpone(child, "A process ended and will be replaced", pid=pid, code=code)

    def _postpone(self, child: _Child, event: str, **about: Any) -> None:
        child.ends += 1
        wait = RESTART.wait_before(child.ends + 1).total_seconds()
        child.starts_at = time.monotonic() + wait
        log.error(event, process=child.name, **about, restart_in=wait)


def _settle(name: str) -> None:
    """Give this process its name and a group of its own, so that Ctrl-C reaches only the parent."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    with suppress(OSError):  # another system than Linux
        Path("/proc/self/comm").write_text(f"qm-{name}"[:15])


def _end_with(parent: int, lifeline: int) -> None:
    """Get SIGTERM when the parent ends; on Linux also after an `exec`, by which Celery restarts a worker at SIGHUP."""
    try:
        is_told = ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM) == 0
    except AttributeError:  # another system
        is_told = False
    if not is_told:
        Thread(target=_end_after, args=[lifeline], daemon=True).start()
    elif os.getppid() != parent:  # it has ended before
        os.kill(os.getpid(), signal.SIGTERM)


def _end_after(lifeline: int) -> None:
    os.read(lifeline, 1)  # returns at its end
    os.kill(os.getpid(), signal.SIGTERM)
