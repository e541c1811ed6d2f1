"""The system that a path names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Path

from beat_schedule import systems
from queue_manager.items import Listed
from queue_manager.system import System
from queue_manager.web.http.errors import ApiError


def _named(name: Annotated[str, Path()]) -> System:
    return _found(name, systems())


def _with_items(name: Annotated[str, Path()]) -> tuple[System, Callable[[], Listed]]:
    system = _found(name, [system for system in systems() if system.items is not None])
    assert system.items is not None
    return system, system.items


def _found(name: str, known: Iterable[System]) -> System:
    by_name = {system.name: system for system in known}
    if name not in by_name:
        message = f"There is no system {name!r} here; the systems are: {', '.join(by_name)}"
        raise ApiError(HTTPStatus.NOT_FOUND, "not found", message, field="name")
    return by_name[name]


Named = Annotated[System, Depends(_named)]
"""The system that a path names."""
WithItems = Annotated[tuple[System, Callable[[], Listed]], Depends(_with_items)]
"""The system that a path names, and its list of items."""
