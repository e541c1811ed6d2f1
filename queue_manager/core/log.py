"""Structured log lines on top of the standard `logging`: `INFO  Processed snooze rooms.  initiator=… enqueued=12`.

Guarantee: URLs are logged through `settings.redact_url`, without secrets. An entry is one line and the lines of a
traceback are indented, which prevents log injection. Colours are used only on a terminal, and not with NO_COLOR set.
The lines of a process of `queue-manager start` have its name: in front of each line, or as a field in JSON. Importing
this module does not configure logging: a program that only sends tasks keeps its own configuration. An outage of a
server is one line of each component and process, without a traceback, until it is over.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from logging.handlers import WatchedFileHandler
from typing import Any, TextIO, cast

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

from queue_manager.core.errors import ErrorText, reason, refusing_server, unavailable_server

OUTAGE_GAP = 60.0  # seconds without such a line, after which an outage counts as another one
OUTAGE_LOG_INTERVAL = 600.0  # seconds after which the same outage is logged again
MAX_OUTAGES = 1_000  # kinds of lines that are remembered

PROCESS_NAME_VARIABLE = "QM_PROCESS_NAME"
"""What names a process of `queue-manager start`: a variable, because Celery executes its command again at SIGHUP."""
_PROCESS_COLOURS = {"worker": 36, "jobs": 33, "scans": 32, "beat": 35, "flower": 34, "web": 96}
_NAME_WIDTH = max(map(len, _PROCESS_COLOURS))

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


class OutageFilter(logging.Filter):
    """Passes one line for each outage and kind of line; the kind is the logger, the text without values, the server.

    A line is about an outage if its exception, or one of its values, is an error of a server that is unavailable or
    refuses all writes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[tuple[str, str, str], tuple[float, float]] = {}  # when each kind was logged, and last seen

    def filter(self, record: logging.LogRecord) -> bool:
        server = next(_servers_away(record), None)
        if server is None:
            return True
        content: Any = record.msg
        event = str(content["event"] if isinstance(content, dict) else content)
        if isinstance(record.args, dict):  # Celery's line about a retry: one for each wait
            event += "".join(value for value in record.args.values() if isinstance(value, ErrorText))
        _remove_traceback(record)
        return self._is_first((record.name, event, server), time.monotonic())

    def _is_first(self, kind: tuple[str, str, str], now: float) -> bool:
        logged_at, seen_at = self._lines.get(kind, (-OUTAGE_LOG_INTERVAL, -OUTAGE_GAP))
        is_first = now - seen_at >= OUTAGE_GAP or now - logged_at >= OUTAGE_LOG_INTERVAL
        if len(self._lines) >= MAX_OUTAGES:
            self._lines.clear()
        self._lines[kind] = (now if is_first else logged_at, now)
        return is_first


def _remove_traceback(record: logging.LogRecord) -> None:
    content: Any = record.msg
    if isinstance(content, dict):
        content.pop("exc_info", None)
    elif record.exc_info and (error := record.exc_info[1]) is not None:
        if isinstance(record.args, dict) and "exc" in record.args:  # Celery's lines about tasks
            text = next((value for value in error.args if isinstance(value, ErrorText)), reason(error))
            record.args = {**record.args, "exc": f"{type(error).__name__}: {text}"}
        else:
            record.msg, record.args = f"{record.getMessage()} ({reason(error)})", None
    record.exc_info = record.exc_text = None


def _servers_away(record: logging.LogRecord) -> Iterator[str]:
    """Yield the servers that the exception, its arguments and the values of a line say are unavailable."""
    error = record.exc_info[1] if record.exc_info else None
    values: list[object] = [] if error is None else [error, *error.args]
    parts: tuple[Any, ...] = (record.msg, record.args)
    for part in parts:
        values += part.values() if isinstance(part, dict) else part if isinstance(part, tuple) else ()
    for value in values:
        server = value.server if isinstance(value, ErrorText) else None
        if isinstance(value, BaseException):
            server = unavailable_server(value) or refusing_server(value)
        if server is not None:
            yield server


def configure(*, level: str | int = "INFO", form: str = "console", file: str | None = None) -> None:
    """Write every log line of this process to a file or stderr, as `console` text or as one `json` object per line."""
    process = os.environ.get(PROCESS_NAME_VARIABLE)
    render: list[Processor]
    if form == "json":  # which escapes control characters itself
        shared, render = _JSON, [structlog.processors.JSONRenderer(sort_keys=True)]
        if process is not None:
            render.insert(0, _process_field(process))
    else:
        is_coloured = file is None and has_colours(sys.stderr)
        console = structlog.dev.ConsoleRenderer(colors=is_coloured, pad_event_to=0)
        shared, render = _SHARED, [_escape_control_characters, console]
        if process is not None:
            colour = _PROCESS_COLOURS.get(process) if is_coloured else None
            render.append(_prefix_of_lines(line_prefix(process, width=_NAME_WIDTH, colour=colour)))
    handler = logging.StreamHandler(sys.stderr) if file is None else WatchedFileHandler(file, encoding="utf-8")
    handler.addFilter(OutageFilter())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                *shared,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                *render,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # A line per received message is redundant to the one that it succeeded.
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)


def has_colours(stream: TextIO) -> bool:
    """Return True if lines in a stream may be coloured: on a terminal, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def line_prefix(name: str, *, width: int, colour: int | None) -> str:
    """Return what the lines of a process begin with; `colour` is its ANSI code."""
    text = f"{name:<{width}} |"
    return f"{text} " if colour is None else f"\033[{colour}m{text}\033[0m "


def _prefix_of_lines(prefix: str) -> Processor:
    return lambda _, __, entry: prefix + str(entry).replace("\n", f"\n{prefix}")


def _process_field(name: str) -> Processor:
    return lambda _, __, entry: {"process": name, **entry}


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
