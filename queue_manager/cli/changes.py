"""Shared by the commands that change something: confirmation, their entry in the audit, pausing with a reason.

Commands are recorded under the user of the operating system.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import sys
from contextlib import AbstractContextManager
from typing import Annotated, Any

import typer

from models.audit import ActionName
from queue_manager.cli.errors import fail
from queue_manager.cli.terminal import print_line, printable
from queue_manager.core import log
from queue_manager.core.settings import settings
from queue_manager.core.wording import many
from queue_manager.operations.schemas import NewPause, validated
from services.audit import Actor, AuditedAction, recorded, undo_hint

TYPED_FROM = 1_000  # entries; who deletes more has to type their name

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
PauseReason = Annotated[str | None, typer.Option("--reason", help="Reason, shown to other operators.", metavar="TEXT")]


def confirm(
    action: str,
    count: int,
    noun: str,
    of: str = "",
    *,
    yes: bool,
    number: str | None = None,
    typed: str | None = None,
) -> None:
    """Ask for confirmation unless it was given, exit code 1 without it; end with 0 if there is nothing to change.

    Args:
        of: what follows the noun, such as ` in main`.
        number: replaces the count and the noun in the question.
        typed: what must be typed to delete more than 1,000.
    """
    if not count:
        print_line(f"no {noun}s{of} to {action}")
        raise typer.Exit
    question = printable(f"{action.capitalize()} {number or many(count, noun)}{of}?")
    if yes:
        return
    try:
        if typed is None or count <= TYPED_FROM:
            typer.confirm(question, abort=True)
        elif typer.prompt(f"{question} Type {printable(typed)} to confirm").strip() != typed:
            fail(f"nothing was deleted: you did not type {typed}", code=1)
    except typer.Abort:
        if sys.stdin is not None and sys.stdin.isatty():
            raise
        typer.echo()
        fail("nothing was changed: use --yes to confirm without a terminal", code=1)


def audited(action: ActionName, **known: Any) -> AbstractContextManager[AuditedAction]:
    """Record what a command does in the block; see `services.audit.recorded`."""
    return recorded(current_actor(), action, **known)


def echo_undo(undo: str | None) -> None:
    """Print how to undo a deletion, if that is possible."""
    if undo is not None:
        print_line(f"To {undo_hint(undo)}")


def current_actor() -> Actor:
    """Return the user who runs the command, for the audit log; its errors are logged in one line on stderr."""
    if not logging.getLogger().handlers:
        log.configure(level="WARNING", form=settings().qm_log_format)
    return Actor(who=user_name(), via="cli", address=socket.gethostname())


def user_name() -> str:
    """Return the name of the user who runs the command; `uid 1000` in a container whose user has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


def checked_reason(reason: str | None) -> str | None:
    """Return a reason, or None if it is empty; end the command with exit code 2 if the API would refuse it."""
    (reason or "").encode()  # of an unpaired surrogate, pydantic would only say that it is no valid string
    return validated(NewPause, {"reason": reason or None}).reason


def resumed(was_paused: bool) -> str:
    """Return the text to print after the name of what is resumed."""
    return "resumed" if was_paused else "was not paused"
