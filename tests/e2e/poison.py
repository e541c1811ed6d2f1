"""Ways in which an item or a job never ends well."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

GIL_HELD_FOR = 15  # seconds


def poison(does: str) -> None:
    """Do it: exit (the process ends at once), raise-exit (SystemExit), kill (SIGKILL to the worker and all its
    children), hang (it never returns), hold-gil (no other thread of the process runs for a while), memory
    (MemoryError), raise (another error).
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
            raise MemoryError
        case "raise":
            raise ValueError("poison")
        case _:
            raise AssertionError(f"{does} is no poison")
