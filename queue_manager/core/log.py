"""Structured log lines on top of the standard `logging`: `INFO  Processed snooze rooms.  initiator=… enqueued=12`.

Guarantee: nothing here writes a secret; addresses go through `settings.masked`. Colours only on a terminal.
Importing this configures nothing: a program that only calls our tasks keeps its own logging.
"""

from __future__ import annotations

import logging
import sys
from typing import cast

import structlog
from structlog.types import Processor

_SHARED: list[Processor] = [
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=True, key="timestamp"),
]
_JSON: list[Processor] = [
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
]


def get_logger(initiator: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of one part; every line of it carries `initiator`."""
    logger = structlog.wrap_logger(
        logging.getLogger(f"queue_manager.{initiator}"),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
    )
    return cast(structlog.stdlib.BoundLogger, logger.bind(initiator=initiator))


def level_number(name: str) -> int:
    return logging.getLevelNamesMapping()[name]


def configure(*, level: str | int = "INFO", form: str = "console") -> None:
    """Send every log line of this process to stderr, as `console` text or one `json` object a line."""
    renderer: Processor
    if form == "json":
        shared, renderer = _JSON, structlog.processors.JSONRenderer(sort_keys=True)
    else:
        shared, renderer = _SHARED, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                *shared,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # One line per message received says nothing that "succeeded" does not say again.
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
