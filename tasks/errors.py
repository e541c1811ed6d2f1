"""Wrong settings at Celery's edge: the command line prints one clear line, a calling program gets an exception."""

from __future__ import annotations

import click

from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import Settings, settings


class SettingsError(ConfigurationError, click.ClickException):
    """A wrong setting, in the form that Celery's command line prints without a traceback."""

    def __init__(self, message: str) -> None:
        click.ClickException.__init__(self, message)


def settings_or_usage_error() -> Settings:
    """Return the settings. Raises `SettingsError`."""
    try:
        return settings()
    except ConfigurationError as error:
        raise SettingsError(f"settings are wrong\n{error}") from None
