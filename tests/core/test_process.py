"""Objects that exist after start-up are frozen, and garbage of tasks is collected soon."""

from __future__ import annotations

import json
import subprocess
import sys

from queue_manager.core.process import GC_THRESHOLD, POOL_GC_THRESHOLD

PROGRAM = """
import gc, json
from queue_manager.core.process import reduce_garbage_collection
there = [[] for _ in range(1000)]
reduce_garbage_collection()
ring = []
ring.append(ring)
del ring
print(json.dumps({"frozen": gc.get_freeze_count(), "threshold": gc.get_threshold()[0], "found": gc.collect()}))
"""


def test_existing_objects_are_frozen_and_later_ones_are_collected() -> None:
    said = json.loads(subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True).stdout)
    assert said["frozen"] > 1000
    assert said["threshold"] == GC_THRESHOLD
    assert said["found"] >= 1


OLD_GARBAGE = """
import gc, json
there = [[] for _ in range(400_000)]
gc.collect()
from queue_manager.core.process import reduce_garbage_collection
reduce_garbage_collection()
gc.set_threshold(100, 2, 2)
full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 else None)
kept = [[] for _ in range(5_000)]
print(json.dumps({"full": len(full)}))
"""


def test_frozen_objects_do_not_delay_full_collections() -> None:
    said = json.loads(subprocess.run([sys.executable, "-c", OLD_GARBAGE], check=True, capture_output=True).stdout)
    assert said["full"] > 0


GARBAGE_OF_TASKS = """
import json
from weakref import finalize
from queue_manager.worker.lifecycle import settle
settle()
class Ring:
    pass
alive = most = 0
def gone():
    global alive
    alive -= 1
for _ in range(100_000):
    ring = Ring()
    ring.ring = ring
    alive += 1
    most = max(most, alive)
    finalize(ring, gone).atexit = False
print(json.dumps({"most": most}))
"""


def test_a_pool_process_collects_the_garbage_of_its_tasks_soon() -> None:
    said = json.loads(subprocess.run([sys.executable, "-c", GARBAGE_OF_TASKS], check=True, capture_output=True).stdout)
    assert said["most"] <= POOL_GC_THRESHOLD
