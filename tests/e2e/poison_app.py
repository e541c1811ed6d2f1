"""The product's own application, in which waking one room never ends well; `celery -A tests.e2e.poison_app worker`.

POISON_ROOM  id of the room
POISON_DOES  what waking it does, as in `poison`
POISON_NOTE  a file that gets the pid of the process which wakes it
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bson import ObjectId

from models.due_documents import DueCollection
from tasks import app, item
from tests.e2e.poison import poison

__all__ = ["app"]

ROOM = ObjectId(os.environ["POISON_ROOM"])

app.conf.broker_transport_options["visibility_timeout"] = 4
item.MIN_BATCH_TIMEOUT = 2

apply = DueCollection.apply


def poisoned(documents: DueCollection, due_at: Mapping[Any, Any], *arguments: Any, **options: Any) -> Any:
    if ROOM in due_at:
        if note := os.environ.get("POISON_NOTE"):
            Path(note).write_text(str(os.getpid()))
        poison(os.environ["POISON_DOES"])
    return apply(documents, due_at, *arguments, **options)


DueCollection.apply = poisoned  # type: ignore[assignment,method-assign]
