"""An external system: trials that have ended. Tests copy it to a package outside the repository."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from pymongo import IndexModel

from models.database import collection, server_now
from models.document_id import id_text, read_id
from queue_manager import System
from queue_manager.core.retry import RetryPolicy
from queue_manager.items import DueItem, Item, Listed, Position, State
from queue_manager.system import SystemStats
from services.due_work import Due, DueWork, leases_of
from tasks.item import item_task
from tasks.scan import ScanReport, fan_out, scan_task


class Trials(DueWork, Listed):
    def find_due(self, until: datetime) -> Iterator[Due]:
        yield from map(_item, _due())

    def items(self, state: State, *, after: Position | None = None, newest_first: bool = True) -> Iterator[Item]:
        for trial in _due() if state == "due" else []:
            position = (trial["ends_at"], trial["_id"])
            yield Item(id=id_text(trial["_id"]), title="", state=state, position=position, due_at=trial["ends_at"])

    def take(self, ids: Sequence[str]) -> list[DueItem]:
        return self.take_manually([item for item in map(_item, _due()) if item.id in ids])

    def has(self, id: str) -> bool:
        return collection("trials").find_one({"_id": read_id(id, field="id")}) is not None


def ended_trials() -> Trials:
    return Trials(leases=leases_of("trial-end"))


def stats() -> SystemStats:
    return SystemStats(numbers={"due": len(_due())})


@scan_task(initiator="billing", sent="Sent ended trials.", failed="Error in ended trials")
def scan_trials() -> ScanReport:
    return fan_out(end_trial, ended_trials())


@item_task(queue="trials", work=ended_trials, retry=RetryPolicy(max_attempts=3, base=timedelta(seconds=1)))
def end_trial(id: str, ends_at: str) -> dict[str, Any]:
    ended = collection("trials").delete_one({"_id": read_id(id, field="id"), "ends_at": {"$lte": server_now()}})
    return {"ended": ended.deleted_count}


def _due() -> list[dict[str, Any]]:
    return list(collection("trials").find({"ends_at": {"$lte": server_now()}}))


def _item(trial: dict[str, Any]) -> Due:
    return Due(id=id_text(trial["_id"]), due_at=trial["ends_at"])


trials = System(
    name="trial-end",
    title="Trials",
    description="Trial accounts, expired when their trial is over.",
    every=timedelta(seconds=1),
    scan_task="billing.trials.scan_trials",
    item_task="billing.trials.end_trial",
    queue="trials",
    items=ended_trials,
    items_name="trials",
    stats=stats,
    collections=lambda: {"trials": [IndexModel("ends_at", name="ended_trials")]},
)
