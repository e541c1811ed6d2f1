"""Recording of commands in the audit, under the user of the operating system."""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from models.archive import UNDO_TIME
from models.audit import ActionName
from queue_manager.core import log
from queue_manager.core.settings import settings
from services.audit import Actor, AuditedAction, recorded


@contextmanager
def audited(action: ActionName, **known: Any) -> Iterator[AuditedAction]:
    """Record what a command does in the block; see `services.audit.recorded`."""
    with recorded(current_actor(), action, **known) as done:
        yield done


def echo_undo(undo: str | None) -> None:
    """Print how to undo a deletion, if that is possible."""
    if undo is not None:
        minutes = UNDO_TIME.total_seconds() / 60
        typer.echo(f"To undo it within {minutes:.0f} minutes: queue-manager audit undo {undo}")


def current_actor() -> Actor:
    """Return who runs the command, for the audit, whose errors are one line on stderr."""
    if not logging.getLogger().handlers:
        log.configure(level="WARNING", form=settings().qm_log_format)
    return Actor(who=user_name(), via="cli", address=socket.gethostname())


def user_name() -> str:
    """Return the name of the user who runs the command; `uid 1000` in a container whose user has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"
