"""A consumer of the message queue: `python -m tests.servers.consumer TYPE FILE [SECONDS]`.

Writes the id and the attempt of each message to the file, and works on it for so many seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from queue_manager import message_queue
from services.message_queue import QueueUnavailable

RETRY_DELAY = 0.2  # seconds


def main(type: str, file: str, seconds: str = "0") -> None:
    queue = message_queue()
    while True:
        try:
            with queue.receive(timeout=30, type=type, ack_timeout=2, consumer_id="program") as message:
                if message is not None:
                    with Path(file).open("a") as received:
                        print(message.id, message.fields["attempt_count"], file=received)
                    time.sleep(float(seconds))
        except QueueUnavailable:
            time.sleep(RETRY_DELAY)


if __name__ == "__main__":
    main(*sys.argv[1:])
