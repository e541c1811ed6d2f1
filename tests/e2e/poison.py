"""Ways in which an item or a job never ends well."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
from pathlib import Path

GIL_HELD_FOR = 15  # seconds
EATEN = 200_000_000  # bytes


def poison(does: str) -> None:
    """Do it: exit (the process ends at once), raise-exit (SystemExit), kill (SIGKILL to the worker and all its
    children), hang (it never returns), hold-gil (no other thread of the process runs for a while), memory
    (it allocates until the system gives the process no more), out-of-memory (it allocates, and is killed as the kernel
    does it), raise (another error).
    """
    match does:
        case "exit":
            os._exit(1)
        case "raise-exit":
            sys.exit(1)
        case "kill":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        case "hang":
            threading.Event().wait()
        case "hold-gil":
            ctypes.PyDLL(None).sleep(GIL_HELD_FOR)
        case "memory":
            _eat_memory()
        case "out-of-memory":
            bytearray(EATEN)
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise ValueError("poison")
        case _:
            raise AssertionError(f"{does} is no poison")


def _eat_memory() -> None:
    """Allocate memory until there is a MemoryError, in any thread of the process, as under the limit of a container."""
    limit, most = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + EATEN, most))
    eaten = []
    try:
        while True:
            eaten.append(bytearray(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))
