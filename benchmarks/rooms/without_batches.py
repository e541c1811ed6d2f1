"""The project with every item done by itself: what it would be without groups."""

from __future__ import annotations

from tasks import app
from tasks.support_snooze import unsnooze_room

unsnooze_room.Strategy = "celery.worker.strategy:default"

__all__ = ["app"]
