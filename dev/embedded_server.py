"""What an embedded server is: a real server process with a private directory, a loopback port and a log.

Guarantee: one that was started takes writes; it ends with the process that started it, however that one
ends; after `kill` it starts again on the same port with the same data.
"""

from __future__ import annotations

import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from dev.binaries import Program
from dev.children import Child, spawn
from dev.ports import free_port, is_answering
from queue_manager.core.errors import AppError

START_TIMEOUT = 60.0  # seconds; it takes less than one, but a large data set is read first
STOP_GRACE = 4.0  # seconds; mongod needs 1
LOG_LINES = 15  # of a failed server's log, shown with the error


class ServerFailed(AppError):
    """A server did not start, or ended while it did: shows the last lines of its log."""


class EmbeddedServer(ABC):
    """A server process with its directory and port; also a context manager that starts and stops it."""

    program: ClassVar[Program]

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.directory = directory.resolve()
        self.port = free_port() if port is None else port
        self._child: Child | None = None
        self._log_begins = 0

    @property
    def pid(self) -> int:
        """The server's process number. Raises ServerFailed when it is not running."""
        if self._child is None:
            raise ServerFailed(f"{self.program.name} is not running")
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    @abstractmethod
    def url(self) -> str:
        """The address by which clients reach it."""

    def start(self) -> None:
        """Start the server and return when it is ready for writes.

        Raises:
            ServerNotFound: there is no such program here.
            ServerFailed: it ended, or was not ready in time; with the last lines of its log.
        """
        self.kill()  # forget one that died by itself
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        command = self._command(str(self.program.find()))
        with self.log.open("ab") as log:
            self._log_begins = log.tell()
            self._child = spawn(command, cwd=self.directory, stdout=log, stderr=subprocess.STDOUT, grace=STOP_GRACE)
        try:
            self._wait_until_ready(self._child)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop the server in order; after a few seconds, kill it. Does nothing when it is not running."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would. Does nothing when it is not running."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log(self) -> Path:
        return self.directory / f"{self.program.name.lower()}.log"

    def _wait_until_ready(self, child: Child) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not (is_answering(self.port) and self._is_ready()):
            if child.poll() is not None:
                raise ServerFailed(f"{self.program.name} ended with {child.poll()} at its start:\n{self._last_words()}")
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{self.program.name} was not ready after {START_TIMEOUT:g} s:\n{self._last_words()}"
                )
            time.sleep(0.01)

    def _last_words(self) -> str:
        with self.log.open(errors="replace") as log:
            log.seek(self._log_begins)
            lines = log.read().splitlines()
        return "\n".join((list(filter(self._is_telling, lines)) or lines)[-LOG_LINES:])

    def _is_telling(self, line: str) -> bool:
        """Return True if a line of the log may say why the server did not start."""
        return True

    @abstractmethod
    def _command(self, program: str) -> list[str]:
        """Return the command line; it runs in the server's directory."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Return True if this very server, and not another process on its port, takes writes."""
