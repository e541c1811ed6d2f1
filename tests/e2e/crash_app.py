"""The product's own application, with one thing that goes wrong at one step; `celery -A tests.e2e.crash_app worker`.

CRASH_AT  the step: taken, published, written (and `after` not called yet), attempt
CRASH_DO  what happens there, in order, separated by commas: resnooze (an agent snoozes the room again for
          RESNOOZE_SECONDS), kill (SIGKILL to the worker and all its children), fail (an error), slow (for
          SLOW_SECONDS, 0.4 by default), hold
          (until CRASH_MARK exists)
CRASH_MARK  a file made when it has happened: it happens once; slow and fail happen every time while it is missing
RESUBSCRIBE_SECONDS  how long events are emitted again after Redis has started
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from bson import ObjectId
from pymongo.errors import OperationFailure

from models import support_room
from models.database import server_now
from models.due_documents import DueCollection
from services import realtime
from services.support_snooze import system
from tasks import app, item, scan

__all__ = ["app"]

STEP, ACTIONS = os.environ["CRASH_AT"], os.environ["CRASH_DO"].split(",")
MARK = Path(os.environ["CRASH_MARK"])

realtime.RESUBSCRIBE_TIME = timedelta(seconds=float(os.environ.get("RESUBSCRIBE_SECONDS", "60")))

# What a killed worker held comes back within seconds, so that its events can be waited for.
app.conf.broker_transport_options["visibility_timeout"] = 4


def goes_wrong(room_id: Any) -> None:
    if room_id is None or MARK.exists():
        return
    for action in ACTIONS:
        if action == "resnooze":
            until = server_now() + timedelta(seconds=float(os.environ["RESNOOZE_SECONDS"]))
            support_room.rooms().update_one(
                {"_id": ObjectId(str(room_id))}, {"$set": {"snooze_time": {"time": until}, "status": "snoozed"}}
            )
            MARK.touch()
        elif action == "kill":
            MARK.touch()
            os.killpg(os.getpgrp(), signal.SIGKILL)
        elif action == "slow":
            time.sleep(float(os.environ.get("SLOW_SECONDS", "0.4")))
        elif action == "hold":
            while not MARK.exists():
                time.sleep(0.05)
        elif action == "fail":
            raise OperationFailure("the index is corrupt")


def before(owner: Any, name: str, room_of: Callable[..., Any]) -> None:
    """Let it go wrong right before `owner.name` runs; `room_of` finds the room in its arguments."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        goes_wrong(room_of(*args, **kwargs))
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


if STEP == "taken":
    before(scan, "publish", lambda task, items, producer: items[0].args[0])
elif STEP == "published":
    before(item.ItemTask, "__call__", lambda task, room_id, *_: room_id)
elif STEP == "attempt":
    before(DueCollection, "apply", lambda documents, due_at, *_, **__: next(iter(due_at)))
elif STEP == "written":
    before(system.functions, "after", lambda written: written[0].id)
