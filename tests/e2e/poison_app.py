"""The product's own application, in which waking one room never ends well; `celery -A poison_app worker`.

POISON_ROOM  id of the room
POISON_DOES  what waking it does: exit (the process ends at once), raise-exit (it raises SystemExit), kill (SIGKILL to
             the worker and all its children), hang (it never returns), memory (it raises MemoryError)
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from bson import ObjectId

from models import support_room
from tasks import app

__all__ = ["app"]

ROOM = ObjectId(os.environ["POISON_ROOM"])

app.conf.broker_transport_options["visibility_timeout"] = 4

wake, wake_many = support_room.wake, support_room.wake_many


def poison() -> None:
    match os.environ["POISON_DOES"]:
        case "exit":
            os._exit(1)
        case "raise-exit":
            sys.exit(1)
        case "kill":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        case "hang":
            threading.Event().wait()
        case "memory":
            raise MemoryError


def wake_one(room_id: Any, **options: Any) -> Any:
    if room_id == ROOM:
        poison()
    return wake(room_id, **options)


def wake_several(room_ids: Any, tokens: Any, **options: Any) -> Any:
    if ROOM in room_ids:
        poison()
    return wake_many(room_ids, tokens, **options)


support_room.wake, support_room.wake_many = wake_one, wake_several
