"""Structured log lines on top of the standard `logging`: `INFO  Processed snooze rooms.  initiator=… enqueued=12`.

Guarantee: URLs are logged through `settings.redact_url`, without secrets. An entry is one line and the lines of a
traceback are indented, which prevents log injection. Colours are used only on a terminal. Importing this module does
not configure logging: a program that only sends tasks keeps its own configuration.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import cast

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CONTROL_IN_TRACEBACK = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # keeps tabs and newlines

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
    """Return a logger whose entries have the field `initiator`."""
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
    """Send every log line of this process to stderr, as `console` text or as one `json` object per line."""
    renderer: Processor
    if form == "json":
        shared, renderer = _JSON, structlog.processors.JSONRenderer(sort_keys=True)
    else:
        shared, renderer = _SHARED, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    escape: list[Processor] = [] if form == "json" else [_escape_control_characters]  # JSON escapes them itself
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                *shared,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                *escape,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # A line per received message is redundant to the one that it succeeded.
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)


def _escape_control_characters(_: WrappedLogger, __: str, entry: EventDict) -> EventDict:
    for name, value in entry.items():
        if not isinstance(value, str):
            continue  # rendered by `repr`, which escapes them
        if name in ("exception", "stack"):
            entry[name] = "  " + _CONTROL_IN_TRACEBACK.sub(_escaped, value).replace("\n", "\n  ")
        else:
            entry[name] = _CONTROL.sub(_escaped, value.rstrip())
    return entry


def _escaped(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode()
