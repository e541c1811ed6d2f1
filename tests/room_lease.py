"""The lease of a room, for tests."""

from __future__ import annotations

from bson import ObjectId

from queue_manager import leases
from queue_manager.leases import Leases
from queue_manager.leases.state import LeaseStatus
from tests.rooms import get_room

LEASES = Leases("support-snooze")


def name(room_id: ObjectId) -> str:
    return leases.name(str(room_id), get_room(room_id)["snooze_time"]["time"])


def lease(room_id: ObjectId) -> LeaseStatus:
    """Return the lease of a snoozed room for its present snooze."""
    (status,) = LEASES.statuses([name(room_id)])
    return status
