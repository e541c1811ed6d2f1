"""A scanner process: waits until everybody is there, then scans until nothing is free; prints its runs as JSON."""

from __future__ import annotations

import json
import sys
import time

import redis

from queue_manager.core.settings import settings
from tasks.support_snooze import scan_expired_snoozes


def main(scanners: int) -> None:
    with redis.Redis.from_url(settings().redis_url) as client:
        client.incr("scanners")
        while int(client.get("scanners")) < scanners:
            time.sleep(0.01)
    runs = [scan_expired_snoozes()]
    while runs[-1]["claimed"] or "already_running" in runs[-1]:
        time.sleep(0.05)  # another one may be at it
        runs.append(scan_expired_snoozes())
    print(json.dumps(runs))


main(int(sys.argv[1]))
