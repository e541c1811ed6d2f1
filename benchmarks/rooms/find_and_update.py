"""Support snooze without a broker: two processes that find and update one due room after the other.

Reads `scan` or the id of a room, and answers, as `sender.py`; both lines begin the same loops.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection

PROCESSES = 2


def main() -> None:
    ends: list[Connection] = []
    for _ in range(PROCESSES):
        here, there = Pipe()
        Process(target=work, args=(there,), daemon=True).start()
        ends.append(here)
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.time()
        for end in ends:
            end.send(None)
        print(json.dumps({"began": began}), flush=True)


def work(told: Connection) -> None:
    from benchmarks.rooms.first_attempt import rooms
    from benchmarks.rooms.hand_tuned import client, event

    while True:
        told.recv()
        now = datetime.now(UTC)
        due = {"status": "snoozed", "snooze_time.time": {"$lte": now}}
        while room := rooms().find_one_and_update(
            due,
            {"$set": {"status": "open", "unsnoozed_at": datetime.now(UTC)}, "$unset": {"snooze_time": ""}},
            projection={"account_id": 1},
            sort=[("snooze_time.time", 1)],
        ):
            data = {"room_id": str(room["_id"]), "action": "unsnoozed", "timestamp": now.isoformat()}
            message = event(f"support-{room['account_id']}", data)
            client().publish(os.environ["SOCKETIO_CHANNEL"], json.dumps(message))


if __name__ == "__main__":
    main()
