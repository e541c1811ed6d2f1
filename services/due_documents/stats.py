"""Statistics and problems of a system of `DueDocuments`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from models import outbox
from models.database import Document
from models.document_id import id_key, read_id, shown_id
from models.due_documents import MAX_COUNT
from queue_manager import leases
from queue_manager.core.cached_answer import cached_count
from queue_manager.core.errors import PermanentError
from queue_manager.core.settings import settings
from queue_manager.core.wording import MAX_IDS, error_summary, first_ids, many, rounded, stuck_items
from queue_manager.health_rules import Rule
from queue_manager.system import SystemStats
from services.due_documents.work import DocumentWork

MAX_COMPARED = 1_000  # leases of one state that are compared with their documents; they represent the others
MAX_READ = 5_000  # due documents that are read to find the oldest that have not failed
READ_SIZE = 100  # of these, at a time


def stats(work: DocumentWork) -> SystemStats:
    """Return pending, in progress, stuck, failed, and the lag of the oldest due document that has not failed.

    Pending documents of a large backlog may have been counted seconds ago.
    """
    now = work.clock()
    late = work.system.late_after(settings())
    in_redis = work.leases.stats(late=late)
    lost = _still_due(work, work.leases.ended(before=late, limit=MAX_COMPARED), now) if in_redis.ended else []
    failed = _still_due(work, work.leases.cooling(limit=MAX_COMPARED), now) if in_redis.cooling else []
    stuck, cooling = _of_all(lost, in_redis.ended), _of_all(failed, in_redis.cooling)
    oldest, lag = _oldest(work, now, read=READ_SIZE if in_redis.cooling else MAX_IDS)
    held = in_redis.in_progress + cooling + stuck

    def pending() -> tuple[int, int]:
        due = work.documents.count(now, limit=MAX_COUNT + held)
        return max(due - held, 0), due

    result = SystemStats(
        numbers={
            "pending": cached_count(f"{work.system.name} {work.documents.index}", pending),
            "in_progress": in_redis.in_progress,
            "stuck": stuck,
            "cooling_off": cooling,
        },
        counted_to=MAX_COUNT,
    )
    if lag is not None:
        result.numbers["lag_seconds"] = lag
        if lag > late.total_seconds():
            result.late.extend(oldest)
    if work.system.functions.after is not None:
        left = result.numbers["pending_calls"] = outbox.count_pending(work.system.name, before=now - late)
        if left:
            result.problems[Rule.FAILING_CALLS] = (
                f"{many(left, 'call')} of `after`, each for a batch of {work.system.items_name}, without success for "
                f"more than {rounded(late)}; they are repeated{_oldest_call(work, before=now - late)}"
            )
    item, items = work.system.item_name, work.system.items_name
    if stuck:
        result.problems[Rule.STUCK_ITEMS] = stuck_items(item, items, lost, count=stuck, late=late)
    if cooling:
        count = many(cooling, f"failed {item}", f"failed {items}")
        result.problems[Rule.FAILED_ITEMS] = (
            f"{count}: every attempt failed and the next one starts after a cool-down ({first_ids(failed, cooling)})"
        )
    return result


def _oldest_call(work: DocumentWork, *, before: datetime) -> str:
    """Return a clause about the items and the error of the oldest call; empty if they are unknown."""
    call = outbox.oldest(work.system.name, before=before)
    if call is None or not call.due_at:
        return ""
    error = "" if call.error is None else f": {error_summary(call.error)}"
    return f"; the oldest is for {first_ids(map(shown_id, call.due_at), len(call.due_at))}{error}"


def _still_due(work: DocumentWork, names: Sequence[str], now: datetime) -> list[str]:
    """Return the ids of the documents of these leases that are still due at the same time."""
    by_id: dict[Any, set[str]] = {}
    for name in names:
        try:
            by_id.setdefault(read_id(leases.id_of(name), field="id"), set()).add(name)
        except PermanentError:
            continue
    return [
        shown_id(one["_id"])
        for one in work.documents.due_with_ids(list(by_id), now)
        if work.due_of(one).lease in by_id[id_key(one["_id"])]
    ]


def _of_all(still_due: Sequence[str], leases: int) -> int:
    """Estimate for how many leases the document is still due, from a sample of up to `MAX_COMPARED`."""
    return len(still_due) if leases <= MAX_COMPARED else leases * len(still_due) // MAX_COMPARED


def _oldest(work: DocumentWork, now: datetime, *, read: int) -> tuple[list[str], float | None]:
    """Return the ids of the oldest due documents that have not failed, and how long the first has been due in seconds.

    Documents are read `read` at a time, until enough have not failed. If the first `MAX_READ` all have, the lag is
    `None`: the next ones may not be.
    """
    found, waiting, read_so_far = work.documents.find(now, limit=MAX_READ, batch=read), list[Document](), 0
    while len(waiting) < MAX_IDS and (some := list(islice(found, read))):
        statuses = work.leases.statuses([work.due_of(one).lease for one in some])
        waiting += [one for one, status in zip(some, statuses, strict=True) if status.state != "cooling"]
        read_so_far += len(some)
    if not waiting:
        return [], 0.0 if read_so_far < MAX_READ else None
    lag = now - work.documents.due_at(waiting[0])
    return [shown_id(one["_id"]) for one in waiting[:MAX_IDS]], lag.total_seconds()
