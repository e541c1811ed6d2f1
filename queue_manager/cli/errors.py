"""Errors of the `queue-manager` command: one line, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from models import database
from queue_manager.cli.messages_render import printable
from queue_manager.core.errors import AppError, ConfigurationError


@contextmanager
def report_errors(*invalid: type[AppError]) -> Iterator[None]:
    """Report errors in one line; exit code 2 for `invalid` arguments, 1 for other errors."""
    try:
        yield
    except ConfigurationError:
        raise
    except AppError as error:
        fail(str(error), code=2 if isinstance(error, invalid) else 1)
    except database.Error as error:
        fail(database.describe(error), code=1)


def fail(message: str, *, code: int) -> NoReturn:
    """Print an error, with control characters escaped, and exit. Invalid settings are a line each."""
    typer.echo("queue-manager: " + "\n".join(map(printable, message.split("\n"))), err=True)
    sys.exit(code)
