"""Invalid settings under Celery: its command line prints one line, a calling program gets an exception."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from queue_manager.core.errors import ConfigurationError


class SettingsError(ConfigurationError, click.ClickException):
    """An invalid setting, in the form that Celery's command line prints without a traceback."""

    def __init__(self, message: str) -> None:
        click.ClickException.__init__(self, message)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Raise a ConfigurationError as a `SettingsError`."""
    try:
        yield
    except ConfigurationError as error:
        raise SettingsError(f"invalid settings:\n{error}") from None
