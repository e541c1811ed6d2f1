"""Celery's state, events and acknowledgements of a batch equal those of single tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic, time
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.utils.imports import symbol_by_name
from celery.worker import control, state
from celery.worker.request import create_request_cls

from queue_manager.batching import strategy
from queue_manager.batching.execution import TaskResult
from queue_manager.batching.request import lost_requests
from tasks import app

NAME = "tasks.support_snooze.unsnooze_room"
RESULTS: Sequence[TaskResult] = [(0, "{'room_id': '1'}", 0.25), (0, None, 1e-9), (0, "pä\ud800", 1.0)]


class Events:
    """Takes events as the worker's dispatcher does."""

    enabled = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, type: str, **fields: Any) -> None:
        self.sent.append((type, fields))

    def send_all(self, type: str, fields: Sequence[dict[str, Any]]) -> None:
        for one in fields:
            self.send(type, **one)


class Message:
    """A message from the broker."""

    def __init__(self, id: str) -> None:
        self.headers = {"id": id, "task": NAME}
        self.payload: Any = [[], {}, {}]
        self.body, self.content_type, self.content_encoding = b"[[],{},{}]", "application/json", "utf-8"
        self.properties = {"delivery_tag": id}
        self.delivery_info: dict[str, Any] = {}


class Pool:
    """Terminates processes."""

    def __init__(self) -> None:
        self.terminated: list[Any] = []

    def apply_async(self, *_: Any, **__: Any) -> None:
        raise AssertionError("nothing is executed here")

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        self.terminated.append((pid, signal))


class Worker:
    """Requests as a worker has received them, and what becomes of them."""

    def __init__(self) -> None:
        self.events, self.pool, self.acknowledged = Events(), Pool(), list[str]()

    def receive(self, count: int = len(RESULTS)) -> list[Any]:
        task = app.tasks[NAME]
        kind = create_request_cls(symbol_by_name(task.Request), task, self.pool, "worker@here", self.events, app=app)
        requests = [self._request(kind, task, f"id-{number}") for number in range(count)]
        for request in requests:
            state.task_reserved(request)
        return requests

    def _request(self, kind: Any, task: Any, id: str) -> Any:
        message = Message(id)
        return kind(
            message,
            on_ack=lambda *_: self.acknowledged.append(id),
            app=app,
            eventer=self.events,
            task=task,
            connection_errors=(),
            body=message.body,
            headers=message.headers,
            decoded=False,
        )


@pytest.fixture(autouse=True)
def celerys_state() -> Iterator[None]:
    app.loader.import_default_modules()
    state.reset_state()
    yield
    state.reset_state()


def counted() -> dict[str, Any]:
    return {
        "total": dict(state.total_count),
        "all": list(state.all_total_count),
        "requests": sorted(state.requests),
        "reserved": sorted(request.id for request in state.reserved_requests),
        "active": sorted(request.id for request in state.active_requests),
    }


Report = Callable[[Worker, list[Any]], None]


def one_by_one(worker: Worker, requests: list[Any]) -> None:
    at = monotonic()
    for request in requests:
        request.on_accepted(7, at)


def at_once(worker: Worker, requests: list[Any]) -> None:
    strategy.report_accepted(requests, 7, monotonic(), worker.events)


def ended_one_by_one(worker: Worker, requests: list[Any]) -> None:
    for request, result in zip(requests, RESULTS, strict=True):
        request.on_success(result)


def ended_at_once(worker: Worker, requests: list[Any]) -> None:
    strategy.report_succeeded(list(zip(requests, RESULTS, strict=True)), worker.events)


def observed(accept: Report, end: Report) -> tuple[Any, ...]:
    state.reset_state()
    worker = Worker()
    requests = worker.receive()
    accept(worker, requests)
    after_acceptance = counted()
    assert all(request.worker_pid == 7 and abs(request.time_start - time()) < 60 for request in requests)
    end(worker, requests)
    return after_acceptance, counted(), worker.acknowledged, worker.events.sent


def test_reports_of_a_batch_equal_those_of_single_tasks() -> None:
    apart, together = observed(one_by_one, ended_one_by_one), observed(at_once, ended_at_once)
    assert together == apart
    accepted, ended, acknowledged, events = together
    assert (accepted["total"], accepted["active"]) == ({NAME: 3}, ["id-0", "id-1", "id-2"])
    assert (ended["requests"], ended["reserved"], ended["active"]) == ([], [], [])
    assert acknowledged == ["id-0", "id-1", "id-2"]
    assert [type for type, _ in events] == ["task-started"] * 3 + ["task-succeeded"] * 3


def test_a_request_terminated_before_it_is_accepted_ends_its_process() -> None:
    worker = Worker()
    requests = worker.receive()
    requests[1].terminate(worker.pool, signal=15)  # no process has it yet
    assert worker.pool.terminated == []
    at_once(worker, requests)
    assert worker.pool.terminated == [(7, 15)]


def test_an_error_of_one_request_does_not_affect_the_others() -> None:
    worker = Worker()
    requests = worker.receive()

    def fail(*_: Any) -> None:
        raise ValueError("not of the connection")

    requests[1]._on_ack = fail
    at_once(worker, requests)
    ended_at_once(worker, requests)
    assert worker.acknowledged == ["id-0", "id-2"]
    assert counted()["requests"] == []
    assert len(worker.events.sent) == 6


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (TimeLimitExceeded(2.5), "it took longer than 2.5 s, so its process was ended"),
        (TimeLimitExceeded(None), "it took too long, so its process was ended"),
        (WorkerLostError("exited"), "its process died"),
    ],
)
def test_the_reason_of_a_lost_process_is_kept_for_the_heartbeat(error: Exception, why: str) -> None:
    worker = Worker()
    [request] = worker.receive(1)
    lost_requests.clear()
    request.on_failure(SimpleNamespace(exception=error, traceback="", exc_info=None), send_failed_event=False)
    assert [*lost_requests] == [(request, why)]
    lost_requests.clear()


@pytest.mark.parametrize("is_off", [True, False])
def test_no_events_are_sent_if_events_are_disabled(is_off: bool) -> None:
    worker = Worker()
    requests = worker.receive()
    worker.events.enabled = False
    strategy.report_accepted(requests, 7, monotonic(), None if is_off else worker.events)
    strategy.report_succeeded(list(zip(requests, RESULTS, strict=True)), None if is_off else worker.events)
    assert worker.events.sent == []
    assert worker.acknowledged == ["id-0", "id-1", "id-2"]


@pytest.mark.parametrize(("hard", "soft"), [(7, 3), (7, None), (None, 3)])
def test_time_limits_by_remote_control_apply_to_items_and_not_to_batches(
    monkeypatch: pytest.MonkeyPatch, hard: float | None, soft: float | None
) -> None:
    task = app.tasks[NAME]
    [request] = Worker().receive(1)
    of_item, of_batch = task.item_timeout, task.batch_timeout
    assert request.time_limits == (of_item, None)
    for limit in ("time_limit", "soft_time_limit"):
        monkeypatch.setattr(task, limit, None)  # restored after the test
    control.time_limit(SimpleNamespace(app=app), task_name=NAME, hard=hard, soft=soft)
    assert request.time_limits == (hard or of_item, soft)
    assert task.batch_timeout == of_batch
