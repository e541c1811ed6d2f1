"""The Celery application. Its configuration, `tasks/celeryconfig.py`, is read when it is first needed.

Importing it leaves the current application of the importing program alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from celery import Celery, signals

from queue_manager.core.errors import ConfigurationError
from queue_manager.core.imports import require_own_packages


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


class Application(Celery):
    """A Celery application whose tasks are registered with it alone.

    Celery's default (`shared=True`) registers a task with every application of the process.
    """

    def on_configure(self) -> None:
        """Refuse packages that hide ours; Celery calls this before it reads the configuration."""
        with usage_errors():
            require_own_packages()

    def uses_utc_timezone(self) -> bool:
        return True  # `timezone` in `celeryconfig`, which Celery would read under a lock for each message

    def task(self, *args: Any, **options: Any) -> Any:
        return super().task(*args, **{"shared": False, **options})


app = Application(
    "queue_manager",
    include=[
        "queue_manager.worker.lifecycle",
        "queue_manager.worker.bounded_shutdown",
        "queue_manager.worker.old_keys",
    ],
    events="queue_manager.batching.events:Events",
    set_as_current=False,
)
app.config_from_object("tasks.celeryconfig")
app.steps["worker"].add("queue_manager.batching.pool:PoolStep")
app.steps["consumer"].add("queue_manager.batching.eta:EtaTimers")


@signals.beat_init.connect
def make_current(sender: Any, **_: Any) -> None:
    """Evaluate the schedules that beat loads from Redis by our settings. A worker does this by itself."""
    if sender.app is app:
        app.set_current()
