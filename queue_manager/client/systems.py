"""Systems over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from queue_manager.client.errors import ClientError
from queue_manager.client.exchanges import (
    AsyncResource,
    EventPosition,
    Exchange,
    Page,
    Resource,
    SyncResource,
    event_stream,
    operation,
    pages,
    path_segment,
)

ItemState: TypeAlias = Literal["due", "in-progress", "stuck", "failed"]


class SystemProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A violation of a health rule."""

    system: str
    rule: str
    text: str
    action: str
    severity: str | None = None
    """`critical` or `warning`; `None` from a server of release 0.2."""


class SystemScan(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a scan."""

    at: datetime
    found: int
    enqueued: int
    errors: int
    duration_ms: float
    error: str | None = None


class DurationStats(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of durations, interpolated within the buckets of a histogram."""

    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float


class OnTimeShare(msgspec.Struct, frozen=True, kw_only=True):
    """The share of items, 0 to 1, of which a duration was at most `within_ms`."""

    of: str
    within_ms: int
    share: float


class SystemLatency(msgspec.Struct, frozen=True, kw_only=True):
    """How long items took that were done; `None` where there were none."""

    due_to_done: DurationStats | None
    wait: DurationStats | None
    run: DurationStats | None
    on_time: OnTimeShare | None


class SystemStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one system; a number that could not be read is `None`."""

    name: str
    title: str
    is_on: bool
    due: float | None
    in_progress: float | None
    stuck: float | None
    failed: float | None
    lag_seconds: float | None
    done_per_minute: int | None
    failed_per_minute: int | None
    last_scan: SystemScan | None
    next_scan_at: datetime | None
    is_running: bool
    idle: str | None
    """Why it dispatches nothing although it is on: `paused` or `dry run`."""
    problems: list[SystemProblem]
    latency: SystemLatency | None = None
    """Of the items that were done in the last hour."""


class SystemItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a system; what is unknown is `None`."""

    id: str
    title: str
    state: str
    due_at: datetime | None
    since: datetime | None
    reason: str | None
    attempts: int
    next_at: datetime | None


class RetriedCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many items were sent, and `of` how many that match."""

    sent: int
    of: int


class _SystemOverview(msgspec.Struct):
    systems: list[SystemStatus]


class _SystemTrigger(msgspec.Struct):
    trigger: str | None


class _TaskId(msgspec.Struct):
    task_id: str


class _ItemList(msgspec.Struct):
    items: list[SystemItem]
    cursor: str | None


class _ScanList(msgspec.Struct):
    scans: list[SystemScan]
    cursor: str | None


class SystemOperations(Resource):
    """Shows systems and their items, retries items, starts scans, and pauses systems."""

    @operation
    def list(self) -> Exchange[Sequence[SystemStatus]]:
        """Return the state of all systems."""
        return (yield from self._exchange("GET", "/api/overview", _SystemOverview)).systems

    @operation
    def get(self, name: str) -> Exchange[SystemStatus]:
        """Return the state of one system."""
        return (yield from self._exchange("GET", _path(name), SystemStatus))

    @pages
    def scans(self, cursor: str | None, name: str, *, page_size: int = 50) -> Exchange[Page[SystemScan]]:
        """Iterate over the scans of the last 24 hours, newest first."""
        params = {"limit": page_size, "cursor": cursor}
        answer = yield from self._exchange("GET", f"{_path(name)}/scans", _ScanList, params=params)
        return Page(answer.scans, answer.cursor)

    @pages
    def items(
        self,
        cursor: str | None,
        name: str,
        *,
        state: ItemState = "due",
        search: str | None = None,
        order: Literal["newest", "oldest"] = "newest",
        page_size: int = 50,
    ) -> Exchange[Page[SystemItem]]:
        """Iterate over the items in a state."""
        params = {"state": state, "search": search, "order": order, "limit": page_size, "cursor": cursor}
        answer = yield from self._exchange("GET", f"{_path(name)}/items", _ItemList, params=params)
        return Page(answer.items, answer.cursor)

    @operation
    def retry(self, name: str, id: str) -> Exchange[str]:
        """Send the task of one item that is due, stuck or failed; return the id of the task."""
        return (yield from self._exchange("POST", f"{_path(name)}/items/{path_segment(id)}/retry", _TaskId)).task_id

    @operation
    def retry_all(
        self, name: str, *, state: Literal["due", "stuck", "failed"], search: str | None = None
    ) -> Exchange[RetriedCount]:
        """Send the tasks of all items that match, at most 1,000."""
        body: dict[str, Any] = {"state": state, "search": search}
        return (yield from self._exchange("POST", f"{_path(name)}/items/retry", RetriedCount, body=body))

    @operation
    def trigger(self, name: str) -> Exchange[str]:
        """Start the scan of a system now; return the id of its task. The server needs `QM_HOOKS=true`."""
        system = yield from self._exchange("GET", _path(name), _SystemTrigger)
        if system.trigger is None:
            raise ClientError(404, "not found", "Scans cannot be triggered: QM_HOOKS is off")
        return (yield from self._exchange("POST", system.trigger, _TaskId)).task_id

    @operation
    def pause(self, name: str, reason: str | None = None) -> Exchange[None]:
        """Dispatch no more items of a system; items in flight finish."""
        body = {"reason": reason}
        yield from self._exchange("POST", f"{_path(name)}/pause", object, body=body, is_repeatable=True)

    @operation
    def resume(self, name: str) -> Exchange[None]:
        """Dispatch the items of a paused system again, starting with its next scan."""
        yield from self._exchange("POST", f"{_path(name)}/resume", object, is_repeatable=True)

    @operation
    def mark(self, text: str) -> Exchange[None]:
        """Annotate the charts of all systems at the current time, for example after a deployment."""
        yield from self._exchange("POST", "/api/marks", object, body={"text": text})

    @event_stream
    def events(self) -> EventPosition:
        """Iterate over `overview` events: the state of all systems, whenever it changes."""
        return EventPosition("/api/overview/events", None, self._retry_for)


def _path(name: str) -> str:
    return f"/api/systems/{path_segment(name)}"


class SystemClient(SystemOperations, SyncResource):
    """`Client.systems`."""


class AsyncSystemClient(SystemOperations, AsyncResource):
    """`AsyncClient.systems`."""
