"""Free ports of this machine's loopback address."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from itertools import chain

LOOPBACK = "127.0.0.1"

# Below the range from which systems take the local ports of outgoing connections (Linux from 32768, macOS
# from 49152): a client that retries while its server is down could otherwise be given the server's own
# port.
_OWN_RANGE = range(20_000, 32_000)


def free_port(preferred: int | None = None) -> int:
    """Return `preferred`, or the next free port above it; without a preference any free one."""
    near: Iterable[int] = () if preferred is None else range(preferred, min(preferred + 100, 65_536))
    # The system's randomness: test runners seed the common generator, and two of them would pick the same
    # ports.
    anywhere = random.SystemRandom().sample(_OWN_RANGE, k=200)
    for port in chain(near, anywhere):
        if is_free(port):
            return port
    raise OSError(f"no free port found on {LOOPBACK}")


def is_free(port: int) -> bool:
    """Tell whether a server could listen on `port`."""
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
    """Tell whether somebody listens on `port`."""
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex((LOOPBACK, port)) == 0
