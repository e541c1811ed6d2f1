"""Jobs over HTTP."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from queue_manager.client.errors import ClientError, Retries
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

FIRST_WAIT, MAX_WAIT = 0.1, 2.0  # seconds between two requests for the state of a job
MIN_REQUEST_TIMEOUT = 1.0  # seconds of the last of these requests
MAX_CLEAR_WAIT = 50.0  # seconds for which one request deletes jobs


class JobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in the history of a job."""

    at: datetime
    state: str
    attempt: int | None = None
    worker: str | None = None
    took_ms: int | None = None
    error: str | None = None


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job; malformed fields are `None`. `state` is `pending`, `executing`, `success`, `failure` or `canceled`."""

    id: str = msgspec.field(name="_id")
    name: str | None
    arguments: list[Any] | None
    state: str | None
    due: datetime | None
    waiting: datetime | None = None
    """From when it may be started, while it is pending or failed."""
    priority: int | None
    created: datetime | None
    updated: datetime | None
    attempts: int | None
    last_error: str | None = None
    history: list[JobEntry] | None
    progress: dict[str, Any] | None = None

    @property
    def is_finished(self) -> bool:
        """Return True if no worker will start it again by itself."""
        return self.state in ("success", "canceled") or (self.state == "failure" and self.waiting is None)


class JobQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of one name."""

    name: str
    states: dict[str, int]
    """The number of jobs in each state."""
    is_paused: bool
    oldest_due: datetime | None
    next_due: datetime | None


class _OneJob(msgspec.Struct):
    job: StoredJob


class _JobList(msgspec.Struct):
    jobs: list[StoredJob]
    cursor: str | None


class _JobQueues(msgspec.Struct):
    queues: list[JobQueue]


class _DeletedCount(msgspec.Struct):
    deleted: int
    is_complete: bool = True  # older servers have no time limit


class JobOperations(Resource):
    """Stores, lists and changes jobs; pauses queues."""

    @operation
    def run(
        self,
        name: str,
        *arguments: Any,
        at: datetime | None = None,
        delay: timedelta | None = None,
        priority: int = 0,
        unique: bool = False,
        singular: bool = False,
        every: timedelta | None = None,
        cron: str | None = None,
    ) -> Exchange[StoredJob]:
        """Store a job and return it. The options are those of `queue_manager.jobs.run`.

        It is not repeated after an error that leaves open whether the job was stored; with `unique` you may do so.
        Raises `ClientError` with the error `blocked` if a unique or singular job already exists.
        """
        body = {
            "name": name,
            "arguments": arguments,
            "at": None if at is None else at.isoformat(),
            "delay_seconds": _seconds(delay),
            "priority": priority,
            "unique": unique,
            "singular": singular,
            "every_seconds": _seconds(every),
            "cron": cron,
        }
        answer = yield from self._exchange("POST", "/api/jobs", _OneJob, body=body)
        return answer.job

    @operation
    def get(self, id: str) -> Exchange[StoredJob]:
        """Return one job."""
        return (yield from self._change("GET", id))

    @pages
    def list(
        self,
        cursor: str | None,
        *,
        name: str | None = None,
        state: str | None = None,
        search: str | None = None,
        sort: Literal["created", "due", "updated", "priority", "attempts"] = "created",
        order: Literal["asc", "desc"] = "desc",
        page_size: int = 50,
    ) -> Exchange[Page[StoredJob]]:
        """Iterate over jobs, by default the newest first."""
        params = {"name": name, "state": state, "search": search, "sort": sort, "order": order, "limit": page_size}
        answer = yield from self._exchange("GET", "/api/jobs", _JobList, params={**params, "cursor": cursor})
        return Page(answer.jobs, answer.cursor)

    @operation
    def status(self) -> Exchange[Sequence[JobQueue]]:
        """Return the state of all job queues."""
        return (yield from self._exchange("GET", "/api/jobs/status", _JobQueues)).queues

    @operation
    def wait(self, id: str, *, timeout: float | None = None) -> Exchange[StoredJob]:
        """Wait until a job is finished, and return it; check its `state`. Not for repeating jobs, which never are.

        Raises: TimeoutError after `timeout` seconds, also while the server is unavailable.
        """
        ends_at, delay = time.monotonic() + (math.inf if timeout is None else timeout), FIRST_WAIT
        retries, path = Retries(self._retry_for), f"/api/jobs/{path_segment(id)}"
        while True:
            limit = max(ends_at - time.monotonic(), MIN_REQUEST_TIMEOUT)
            try:
                job = (yield from self._exchange("GET", path, _OneJob, only_within=limit)).job
                if job.is_finished:
                    return job
                retries.reset()
                reason, pause, delay = f"its state is {job.state}", delay, min(delay * 2, MAX_WAIT)
            except ClientError as error:
                if not error.is_temporary:
                    raise
                reason, pause = f"the last request failed: {error}", retries.delay_after(error)
            remaining = ends_at - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"The job {id} is not finished after {timeout:g} s; {reason}")
            yield min(pause, remaining)

    @operation
    def cancel(self, id: str) -> Exchange[StoredJob]:
        """Cancel a job that is pending or failed, or ask one that is executing to stop."""
        return (yield from self._change("POST", id, "/cancel"))

    @operation
    def retry(
        self, id: str, *, state: Literal["pending", "success", "failure", "canceled"] | None = None
    ) -> Exchange[StoredJob]:
        """Make a job that is not executing due now; one that succeeded is run again, unless another `state` is given.

        Raises `ClientError` with the error `wrong state` if the job is executing, or not in `state`.
        """
        return (yield from self._change("POST", id, "/retry", None if state is None else {"state": state}))

    @operation
    def reschedule(
        self, id: str, *, at: datetime | None = None, delay: timedelta | None = None, priority: int | None = None
    ) -> Exchange[StoredJob]:
        """Change the due time or the priority of a job that is pending, failed or canceled."""
        moment = None if at is None else at.isoformat()
        body = {"at": moment, "delay_seconds": _seconds(delay), "priority": priority}
        return (yield from self._change("POST", id, "/reschedule", body))

    @operation
    def remove(self, id: str) -> Exchange[StoredJob]:
        """Delete a job that is not executing, and return it."""
        return (yield from self._change("DELETE", id))

    @operation
    def clear(self, states: Sequence[str], name: str | None = None) -> Exchange[int]:
        """Delete the jobs in these states, of one name or of all, except declared ones; return their number."""
        body, deleted = {"states": states, "name": name}, 0
        while True:
            answer = yield from self._exchange("POST", "/api/jobs/clear", _DeletedCount, body=body, wait=MAX_CLEAR_WAIT)
            deleted += answer.deleted
            if answer.is_complete:
                return deleted

    @operation
    def pause(self, names: Sequence[str], reason: str | None = None) -> Exchange[None]:
        """Start no more jobs of these names; running jobs finish."""
        body = {"names": names, "reason": reason}
        yield from self._exchange("POST", "/api/jobs/pause", object, body=body, is_repeatable=True)

    @operation
    def resume(self, names: Sequence[str]) -> Exchange[None]:
        """Start jobs of these names again."""
        yield from self._exchange("POST", "/api/jobs/resume", object, body={"names": names}, is_repeatable=True)

    @event_stream
    def events(self, last_event_id: str | None = None) -> EventPosition:
        """Iterate over `job-update` events, of every job that is stored, changed or deleted."""
        return EventPosition("/api/jobs/events", last_event_id, self._retry_for)

    def _change(self, method: str, id: str, action: str = "", body: Any = None) -> Exchange[StoredJob]:
        answer = yield from self._exchange(method, f"/api/jobs/{path_segment(id)}{action}", _OneJob, body=body)
        return answer.job


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


class JobClient(JobOperations, SyncResource):
    """`Client.jobs`."""


class AsyncJobClient(JobOperations, AsyncResource):
    """`AsyncClient.jobs`."""
