"""Free ports of this machine's loopback address."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from threading import Lock

LOOPBACK = "127.0.0.1"

# Below the range from which systems take the local ports of outgoing connections (Linux from 32768, macOS
# from 49152): a client that retries while its server is down could otherwise be given the server's own
# port.
_OWN_RANGE = range(20_000, 32_000)


def free_port(preferred: int | None = None) -> int:
    """Return `preferred`, or the next free port above it; without a preference any free one.

    The port stays reserved until this process ends: no other call returns it, in any process of this user.
    """
    near: Iterable[int] = () if preferred is None else range(preferred, min(preferred + 100, 65_536))
    # The system's randomness: test runners seed the common generator, and two of them would pick the same
    # ports.
    anywhere = random.SystemRandom().sample(_OWN_RANGE, k=200)
    for port in chain(near, anywhere):
        if _reservations.acquire(port):
            if is_free(port):
                return port
            _reservations.release(port)
    raise OSError(f"no free port found on {LOOPBACK}")


def is_free(port: int) -> bool:
    """Return True if a server could listen on `port`."""
    if is_answering(port):
        return False
    with socket.socket() as listener:
        # As servers do: a port that only lingers after a server's death counts as free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def is_answering(port: int) -> bool:
    """Return True if a process listens on `port`."""
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex((LOOPBACK, port)) == 0


class _Reservations:
    """The ports returned to this user's processes that still run: one locked byte of a shared file for each.

    POSIX record locks end with their process, and child processes do not inherit them.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._file: int | None = None
        self._own: set[int] = set()  # a process never conflicts with its own record locks

    def acquire(self, port: int) -> bool:
        """Return False if the port is reserved already, by this process or another one."""
        with self._lock:
            if port in self._own:
                return False
            if self._file is None:
                path = Path(tempfile.gettempdir(), f"queue-manager-ports-{os.getuid()}.lock")
                # Never closed: closing any descriptor of the file would release all locks of this process.
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, depending on the system
                return False
            self._own.add(port)
            return True

    def release(self, port: int) -> None:
        with self._lock:
            assert self._file is not None
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, port)
            self._own.discard(port)


_reservations = _Reservations()
