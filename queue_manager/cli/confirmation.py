"""Questions before commands that change or delete much, as the pages ask them."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_manager.cli.errors import fail
from queue_manager.cli.messages_render import printable

TYPED_FROM = 1_000  # entries; who deletes more has to type their name

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation unless it was given; exit code 1 without it."""
    if not yes:
        typer.confirm(printable(question), abort=True)


def confirm_deletion(question: str, *, count: int, name: str, yes: bool) -> None:
    """Ask for confirmation of a deletion; of more than 1,000 entries, their name must be typed."""
    if yes or count <= TYPED_FROM:
        confirm(question, yes=yes)
    elif typer.prompt(printable(f"{question} Type {name} to confirm")).strip() != name:
        fail(f"nothing was deleted, because the name that was typed is not {name}", code=1)
