"""A process of the demo, which ends with the test also if that fails: it would write for other tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from dev.children import Child, spawn


@contextmanager
def running(command: Sequence[str], env: Mapping[str, str]) -> Iterator[Child]:
    child = spawn(command, env={**os.environ, **env})
    try:
        yield child
    finally:
        child.end(grace=30)
