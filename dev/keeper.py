"""The keeper: a small process that ends what its parent started, when the parent itself no longer can.

It reads one JSON object a line from its parent on stdin: `{"keep": pid, "started": "…", "grace": seconds}`
when a process group was started, `{"forget": pid}` when it has ended. The end of that pipe means that the
parent has ended, in any way. Guarantee: then everything still kept is ended, the last started first, each
within its grace.

Run as `python -m dev.keeper` by `keeper_pipe`; standard library only, so that it is small.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable

from dev.processes import ProcessGroup


def read_until_parent_is_gone(lines: Iterable[str]) -> list[ProcessGroup]:
    """Follow the parent's messages to their end; return what is still kept, in the order it was started."""
    kept: dict[int, ProcessGroup] = {}
    for line in lines:
        message = json.loads(line)
        if "forget" in message:
            kept.pop(message["forget"], None)
        else:
            kept[message["keep"]] = ProcessGroup(message["keep"], message["started"], grace=message["grace"])
    return list(kept.values())


def main() -> None:
    # A signal meant for the whole family must not take the one who cleans up after it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for group in reversed(read_until_parent_is_gone(sys.stdin)):
        group.end()


if __name__ == "__main__":
    main()
