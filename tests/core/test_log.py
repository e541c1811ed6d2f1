"""The log's two forms."""

from __future__ import annotations

import json
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
