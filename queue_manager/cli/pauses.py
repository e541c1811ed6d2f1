"""The option `--reason` of the commands that pause."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_manager.cli.errors import fail
from queue_manager.core.pause import MAX_REASON_LENGTH

PauseReason = Annotated[str | None, typer.Option("--reason", help="Why, for the people who see it.", metavar="TEXT")]


def checked_reason(reason: str | None) -> str | None:
    """Return a reason; end the command with exit code 2 if it is too long, or no text."""
    if reason is not None and len(reason) > MAX_REASON_LENGTH:
        fail(f"the reason must have at most {MAX_REASON_LENGTH} characters", code=2)
    if reason is not None and not _is_text(reason):
        fail("the reason must be valid UTF-8", code=2)
    return reason or None


def _is_text(value: str) -> bool:
    """Return False if a value has unpaired surrogates, which stand for bytes that are not UTF-8."""
    return value.encode("utf-8", "replace").decode() == value
