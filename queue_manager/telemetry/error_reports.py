"""Error reports to Sentry: one event for each failure that nothing retries.

Guarantee: attempts that are retried send nothing, and neither does an unavailable server, which health reports. A scan
that keeps failing for the same reason sends one event per `REPEAT_AFTER`. Without `SENTRY_DSN` nothing is imported.
Reporting never raises, and sends in a thread of its own.

A report has the error, its traceback without values of variables, and the ids of the task or the job.
"""

from __future__ import annotations

import atexit
import time
from typing import TYPE_CHECKING, Any

from queue_manager.core.log import get_logger
from queue_manager.core.process import PerProcess
from queue_manager.core.settings import settings

if TYPE_CHECKING:
    from sentry_sdk import Client

REPEAT_AFTER = 600.0  # seconds between two events of the same failing scan from one process
FLUSH_TIMEOUT = 2.0  # seconds at the end of a process

log = get_logger("QM/errors")
_reported_at: dict[tuple[str, str], float] = {}


def _make_client() -> Client:
    from sentry_sdk import Client

    atexit.register(flush)
    # A client of its own, without integrations: those would report every error that is logged, and the errors of a
    # host application.
    return Client(
        dsn=settings().sentry_dsn,
        environment=settings().app_env,
        default_integrations=False,
        include_local_variables=False,
        shutdown_timeout=FLUSH_TIMEOUT,
    )


client = PerProcess(_make_client)


def report(error: BaseException, *, where: str, **tags: Any) -> None:
    """Report a final failure; `where` is the name of the task, job or route, by which Sentry groups."""
    if settings().sentry_dsn is None:
        return
    try:
        from sentry_sdk.utils import event_from_exception

        event, hint = event_from_exception(error, client_options=client().options)
        event["transaction"] = where
        event["tags"] = {"where": where} | {name: str(value) for name, value in tags.items()}
        client().capture_event(event, hint=hint)
    except Exception as failure:
        log.warning("An error could not be reported", error=str(failure))


def report_repeated(error: BaseException, *, where: str) -> None:
    """Report a failure that repeats by itself, unless the same was reported within `REPEAT_AFTER`."""
    same, now = (where, type(error).__name__), time.monotonic()
    if now - _reported_at.get(same, -REPEAT_AFTER) >= REPEAT_AFTER:
        _reported_at[same] = now
        report(error, where=where)


def flush() -> None:
    """Send what is left, before the process ends."""
    if (opened := client.take()) is not None:
        opened.close(timeout=FLUSH_TIMEOUT)
