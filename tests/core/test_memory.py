"""What a process has when it has started is left out of its collections of garbage."""

from __future__ import annotations

import json
import subprocess
import sys

from queue_manager.core.memory import OBJECTS

PROGRAM = """
import gc, json
from queue_manager.core.memory import collect_seldom
there = [[] for _ in range(1000)]
collect_seldom()
ring = []
ring.append(ring)
del ring
print(json.dumps({"frozen": gc.get_freeze_count(), "threshold": gc.get_threshold()[0], "found": gc.collect()}))
"""


def test_what_is_there_is_left_out_and_what_comes_later_is_collected() -> None:
    said = json.loads(subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True).stdout)
    assert said["frozen"] > 1000
    assert said["threshold"] == OBJECTS
    assert said["found"] >= 1
