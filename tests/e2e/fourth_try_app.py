"""The product's own application, in which rooms wake at the fourth attempt; `celery -A fourth_try_app worker`."""

from __future__ import annotations

from typing import Any

from celery import current_task

from models import support_room
from tasks import app

__all__ = ["app"]

wake = support_room.wake


def wake_one(room_id: Any, **options: Any) -> Any:
    if current_task.request.retries < 3:
        raise RuntimeError("not yet")
    return wake(room_id, **options)


def wake_none(*_: Any, **__: Any) -> Any:
    raise RuntimeError("one by one")


support_room.wake, support_room.wake_many = wake_one, wake_none
