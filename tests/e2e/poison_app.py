"""The product's own application, in which waking one room never ends well; `celery -A tests.e2e.poison_app worker`.

POISON_ROOM  id of the room
POISON_DOES  what waking it does: exit (the process ends at once), raise-exit (it raises SystemExit), kill (SIGKILL to
             the worker and all its children), hang (it never returns), memory (it raises MemoryError)
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

from bson import ObjectId

from models.due_documents import DueCollection
from tasks import app

__all__ = ["app"]

ROOM = ObjectId(os.environ["POISON_ROOM"])

app.conf.broker_transport_options["visibility_timeout"] = 4

apply = DueCollection.apply


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


def poisoned(documents: DueCollection, due_at: Mapping[Any, Any], *arguments: Any, **options: Any) -> Any:
    if ROOM in due_at:
        poison()
    return apply(documents, due_at, *arguments, **options)


DueCollection.apply = poisoned  # type: ignore[method-assign]
