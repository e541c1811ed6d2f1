"""Errors of the `queue-manager` command: one line, and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NoReturn

import redis
import typer

from models import database
from queue_manager.cli.terminal import printable
from queue_manager.core.clock import parse_utc
from queue_manager.core.errors import AppError, ConfigurationError, InvalidField, NotFound, PermanentError, reason

OPTIONS = {
    **{
        name: f"--{name}"
        for name in ("at", "cron", "cursor", "delay", "every", "priority", "reason", "search", "sort", "state")
    },
    "ackTimeout": "--ack-timeout",
    "errorReason": "--reason",
    "maxAttempts": "--max-attempts",
    "sortBy": "--sort",
}
"""By the names in the HTTP API, of all that are options in every command that has them."""
UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The errors of an output that was closed or whose disk is full."""


@contextmanager
def report_errors() -> Iterator[None]:
    """Report errors in one line; exit code 2 for invalid arguments, 1 for other errors.

    If Ctrl-C, a closed output or a full disk ends a change, what was changed before is reported, too; exit code 130 for
    Ctrl-C.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except InvalidField as error:
        fail(_with_option(str(error)), code=2)
    except NotFound as error:
        fail(str(error), code=2 if error.field in ("name", "system") else 1)
    except (AppError, redis.RedisError) as error:
        fail(with_outcome(reason(error), error), code=1)
    except database.Error as error:
        fail(with_outcome(database.describe(error), error), code=1)
    except UnicodeEncodeError:  # of the driver of MongoDB or Redis
        fail("an argument is not valid UTF-8", code=2)
    except KeyboardInterrupt as error:
        if not hasattr(error, "__notes__"):
            raise
        fail(with_outcome("interrupted", error), code=128 + signal.SIGINT)
    except OSError as error:
        if not hasattr(error, "__notes__"):
            raise
        fail_to_write(error)


def _with_option(text: str) -> str:
    """Let an error name the option instead of the field of the HTTP API."""
    field, colon, problem = text.partition(": ")
    return f"{OPTIONS.get(field, field)}{colon}{problem}"


def moment(text: str | None, option: str) -> datetime | None:
    """Return the time of an option; end the command with exit code 2 if it is invalid."""
    try:
        return parse_utc(text, field=option)
    except PermanentError as error:
        fail(str(error), code=2)


def with_outcome(text: str, error: BaseException) -> str:
    """Return the text of an error, with what is known of the outcome of the command: see `services.audit.recorded`."""
    return "; ".join([text, *getattr(error, "__notes__", ())])


def fail_to_write(error: OSError) -> NoReturn:
    """End the command because its output was closed or its disk is full. Raises another error again."""
    if error.errno not in UNWRITTEN:
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left at its end
    fail(with_outcome(f"cannot write: {error.strerror}", error), code=1)


def fail(message: str, *, code: int) -> NoReturn:
    """Print an error, with control characters escaped, and exit. Invalid settings are a line each."""
    typer.echo("queue-manager: " + "\n".join(map(printable, message.split("\n"))), err=True)
    sys.exit(code)
