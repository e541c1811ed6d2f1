"""Whether this worker shuts down, for tasks that could go on: shared by its main process with its pool."""

from __future__ import annotations

import mmap

_begun: mmap.mmap | None = None


def share() -> None:
    """Share it with the processes that are forked from now on; the parent of this one may have shared its own."""
    global _begun
    _begun = mmap.mmap(-1, 1)


def forget() -> None:
    """Let this process take new tasks, without a worker."""
    global _begun
    _begun = None


def begin() -> None:
    if _begun is not None:
        _begun[0] = 1


def has_begun() -> bool:
    """Return True if the worker takes no new tasks, and ends when the running ones have."""
    return _begun is not None and _begun[0] == 1
