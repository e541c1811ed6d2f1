"""What the commands that pause and resume have in common, and their option `--reason`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from models.audit import ActionName
from queue_manager.cli.command_audit import audited
from queue_manager.cli.errors import fail, report_errors
from queue_manager.cli.messages_render import printable
from queue_manager.core.pause import MAX_REASON_LENGTH

PauseReason = Annotated[str | None, typer.Option("--reason", help="Reason, shown to other operators.", metavar="TEXT")]


def checked_reason(reason: str | None) -> str | None:
    """Return a reason; end the command with exit code 2 if it is too long, or no text."""
    if reason is not None and len(reason) > MAX_REASON_LENGTH:
        fail(f"the reason must have at most {MAX_REASON_LENGTH} characters", code=2)
    if reason is not None and not _is_text(reason):
        fail("the reason must be valid UTF-8", code=2)
    return reason or None


def switch(
    action: ActionName,
    kind: str,
    names: Sequence[str],
    change: Callable[[Sequence[str]], None],
    what: str,
    *,
    reason: str | None = None,
    **audit: Any,
) -> None:
    """Pause or resume what has these names, with an entry in the audit, and print a line for each.

    Args:
        kind: what the names are of, in the audit.
        audit: the system, and what else `services.audit.recorded` takes.
    """
    selected = {kind: ", ".join(names)} | ({"reason": reason} if reason else {})
    with report_errors(), audited(action, filter=selected, **audit):
        change(names)
    for name in names:
        typer.echo(f"{printable(name)}  {what}")


def _is_text(value: str) -> bool:
    """Return False if a value has unpaired surrogates, which stand for bytes that are not UTF-8."""
    return value.encode("utf-8", "replace").decode() == value
