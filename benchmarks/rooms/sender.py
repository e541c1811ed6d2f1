"""Scans and sends when it is told to, and tells when: `python -m benchmarks.rooms.sender APP`.

Reads a line for each: `scan`, or the id of a room to be sent by itself. Answers with a line of JSON: when it began and
ended, and when the sending of each room began.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from queue_manager.core import memory
from services.due_work import DueItem


def main(name: str) -> None:
    app = import_module(name).app
    with app.producer_or_acquire() as producer:
        producer.connection.ensure_connection()  # as a worker's that has scanned before
    sent: dict[str, float] = {}
    scan, item = _first_attempt(sent) if "first_attempt" in name else _ours(sent)
    print("ready", flush=True)
    for line in sys.stdin:
        sent.clear()
        began = time.time()
        if line.strip() == "scan":
            scan()
        else:
            sent[line.strip()] = began
            item.delay(line.strip())
        print(json.dumps({"began": began, "ended": time.time(), "sent": sent}), flush=True)


def _ours(sent: dict[str, float]) -> tuple[Any, Any]:
    from tasks.support_snooze import scan_expired_snoozes, unsnooze_room

    memory.reduce_garbage_collection()  # as our workers do
    base: Any = import_module("tasks.scan")
    publish = base.publish

    def timed(task: Any, items: Sequence[DueItem], producer: Any) -> None:
        began = time.time()
        sent.update((item.args[0], began) for item in items)
        publish(task, items, producer)

    base.publish = timed
    return scan_expired_snoozes, unsnooze_room


def _first_attempt(sent: dict[str, float]) -> tuple[Any, Any]:
    from benchmarks.rooms.first_attempt import scan, unsnooze_room

    send = unsnooze_room.apply_async

    def timed(args: Any, *rest: Any, **options: Any) -> Any:
        sent[args[0]] = time.time()
        return send(args, *rest, **options)

    unsnooze_room.apply_async = timed
    return scan, unsnooze_room


if __name__ == "__main__":
    main(sys.argv[1])
