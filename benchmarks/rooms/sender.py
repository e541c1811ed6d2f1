"""Sends a scan or a room to workers when it is told to: `python sender.py APP SCAN_TASK ITEM_TASK`.

Reads a line for each: `scan`, or the id of a room. Answers with a line of JSON: when it began, in seconds of the epoch.
It is run by its path, so that a program of another release can be sent to.
"""

import json
import sys
import time
from importlib import import_module


def main(module: str, scan: str, item: str) -> None:
    app = import_module(module).app
    app.loader.import_default_modules()
    with app.producer_or_acquire() as producer:
        producer.connection.ensure_connection()  # as one that has sent before
    print("ready", flush=True)
    for line in map(str.strip, sys.stdin):
        began = time.time()
        app.tasks[scan].delay() if line == "scan" else app.tasks[item].delay(line)
        print(json.dumps({"began": began}), flush=True)


if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file
    main(*sys.argv[1:])
