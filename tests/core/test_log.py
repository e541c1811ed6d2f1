"""The log: its formats, console and JSON, its file, and what it leaves out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from queue_manager.core.log import PROCESS_NAME_VARIABLE

ROOT = Path(__file__).parents[2]

PROGRAM = """
from queue_manager.core import log
log.configure(level="INFO", form={form!r})
logger = log.get_logger("QM/test")
logger.debug("Not shown.")
logger.info("Processed snooze rooms.", enqueued=3)
import logging
logging.getLogger("elsewhere").warning("From %s.", "a library")
"""


def lines(form: str) -> list[str]:
    result = subprocess.run([sys.executable, "-c", PROGRAM.format(form=form)], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")
    return result.stderr.splitlines()


def test_console_line_has_event_and_fields_and_no_colours_outside_a_terminal() -> None:
    ours, theirs = lines("console")
    assert "[info     ] Processed snooze rooms. enqueued=3 initiator=QM/test" in ours
    assert "[warning  ] From a library." in theirs
    assert "\x1b" not in ours + theirs


SET_UP_BY_CELERY = """
import logging
from celery import signals
from queue_manager.worker import lifecycle
from tasks import app

@signals.after_setup_logger.connect
def add_handler(**_):
    logging.getLogger("elsewhere").addHandler(logging.FileHandler("own.log"))

lifecycle.configure_logging(logging.WARNING, "worker-1.log")  # a worker logs before Celery has set up the logs
app.log.setup("INFO", "%n.log", hostname="worker-1@host")
logging.getLogger("elsewhere").info("From %s.", "a library")
"""


def test_celery_processes_log_to_their_logfile_and_to_the_handlers_of_the_product(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FORCE_COLOR": "1"}
    command = [sys.executable, "-c", SET_UP_BY_CELERY]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "worker-1.log").read_text().endswith(" [info     ] From a library.\n")
    assert (tmp_path / "own.log").read_text() == "From a library.\n"


FORGING = """
from queue_manager.core import log
log.configure(level="INFO", form={form!r})
forged = "a\\n05:40:00.000000 [info     ] forged\\r\\x1b[31m\\x9b\\u2028b\\tc\\n"
log.get_logger("QM/test").info("From " + forged, field=forged, fields=[forged])
import logging
logging.getLogger("elsewhere").warning("From %s", forged)
try:
    raise ValueError(forged)
except ValueError:
    logging.getLogger("elsewhere").exception("It failed\\n")
"""


def test_control_characters_are_escaped_and_tracebacks_indented() -> None:
    result = subprocess.run([sys.executable, "-c", FORGING.format(form="console")], capture_output=True, text=True)
    lines = result.stderr.split("\n")
    escaped = r"a\n05:40:00.000000 [info     ] forged\r\x1b[31m\x9b\u2028b\tc"
    assert f"[info     ] From {escaped} field=" in lines[0]
    assert lines[0].endswith("initiator=QM/test")
    assert f"[warning  ] From {escaped}" in lines[1]
    assert "[error    ] It failed" in lines[2]
    assert lines[3] == "  Traceback (most recent call last):"
    assert all(not line or line.startswith("  ") for line in lines[3:])
    assert not re.search(r"[\r\x1b\x9b\u2028]", result.stderr)


def test_each_line_of_a_process_of_start_has_its_name() -> None:
    env = {**os.environ, PROCESS_NAME_VARIABLE: "beat"}
    console, in_json = (
        subprocess.run([sys.executable, "-c", FORGING.format(form=form)], capture_output=True, text=True, env=env)
        for form in ("console", "json")
    )
    assert [line[:9] for line in console.stderr.splitlines()] == ["beat   | "] * len(console.stderr.splitlines())
    assert [json.loads(line)["process"] for line in in_json.stderr.splitlines()] == ["beat"] * 3


def test_json_lines_stay_one_object_each() -> None:
    result = subprocess.run([sys.executable, "-c", FORGING.format(form="json")], capture_output=True, text=True)
    entries = [json.loads(line) for line in result.stderr.split("\n") if line]
    assert [entry["level"] for entry in entries] == ["info", "warning", "error"]
    assert "Traceback" in entries[2]["exception"]


def test_json_line_is_one_object() -> None:
    ours, theirs = map(json.loads, lines("json"))
    assert (
        ours.items()
        >= {
            "event": "Processed snooze rooms.",
            "enqueued": 3,
            "initiator": "QM/test",
            "level": "info",
        }.items()
    )
    assert theirs["event"] == "From a library."
    assert theirs["timestamp"].endswith("Z")


OUTAGES = """
import logging
import redis
from celery.exceptions import Reject
from pymongo.errors import AutoReconnect
from queue_manager.core import log
from queue_manager.core.errors import reason
log.configure(level="INFO", form="console")
logger, theirs = log.get_logger("QM/test"), logging.getLogger("celery.worker")
for attempt in range(3):
    for error in (AutoReconnect("closed"), redis.ConnectionError("closed"), ValueError("boom")):
        logger.warning("It failed", error=reason(error), attempt=attempt)
    logger.error("It failed with a stack", exc_info=AutoReconnect("closed"), error="closed")
    theirs.error("Cannot connect to %s: %s.", "a server", redis.ConnectionError("closed"))
    try:
        raise AutoReconnect("closed")
    except AutoReconnect:
        theirs.exception("Attempt %s", attempt)
    refused = redis.ResponseError("MISCONF Errors writing to the AOF file: No space left on device")
    logger.error("It was refused", error=reason(refused), exc_info=refused)
    try:
        raise Reject(reason(AutoReconnect("closed")), requeue=True)
    except Reject as put_back:
        theirs.warning("Task %(id)s %(exc)s", {"id": attempt, "exc": repr(put_back)}, exc_info=True)
"""


def test_each_kind_of_outage_is_one_line_without_a_traceback() -> None:
    result = subprocess.run([sys.executable, "-c", OUTAGES], capture_output=True, text=True)
    lines = [line.split("] ", 1)[1].strip() for line in result.stderr.splitlines()]
    assert lines == [
        "It failed attempt=0 error=closed initiator=QM/test",
        "It failed attempt=0 error=closed initiator=QM/test",
        "It failed attempt=0 error=boom initiator=QM/test",
        "It failed with a stack error=closed initiator=QM/test",
        "Cannot connect to a server: closed.",
        "Attempt 0 (closed)",
        "It was refused error='MISCONF Errors writing to the AOF file: No space left on device' initiator=QM/test",
        "Task 0 Reject: closed",
        "It failed attempt=1 error=boom initiator=QM/test",
        "It failed attempt=2 error=boom initiator=QM/test",
    ]


AGES = """
import logging
from pymongo.errors import AutoReconnect
from queue_manager.core.log import OutageFilter, OUTAGE_GAP, OUTAGE_LOG_INTERVAL
outages, kind = OutageFilter(), ("logger", "text", "MongoDB")
times = [0.0, OUTAGE_GAP - 1, 2 * OUTAGE_GAP - 1]  # the last one is another outage
times += [times[-1] + number for number in range(1, round(OUTAGE_LOG_INTERVAL) + 1)]  # which lasts
print([round(now) for now in times if outages._is_first(kind, now)])
"""


def test_another_outage_is_logged_and_a_long_one_repeatedly() -> None:
    result = subprocess.run([sys.executable, "-c", AGES], capture_output=True, text=True)
    assert result.stdout == "[0, 119, 719]\n", result.stderr
