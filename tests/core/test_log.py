"""The log's two forms."""

from __future__ import annotations

import json
import re
import subprocess
import sys

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


def test_console_line_has_event_and_fields_and_no_colours_when_it_is_no_terminal() -> None:
    ours, theirs = lines("console")
    assert "[info     ] Processed snooze rooms. enqueued=3 initiator=QM/test" in ours
    assert "[warning  ] From a library." in theirs
    assert "\x1b" not in ours + theirs


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
