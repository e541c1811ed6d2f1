"""A worker that cannot reach MongoDB takes no items until it can, so that other workers execute them.

A thread pings MongoDB every second. When that fails, the worker cancels its consumers of the queues of items, and
requeues what it has received and no process executes. It consumes the queue `scans` all the same: the sweep of the
message queue needs no MongoDB, and any other scan is tried again by its next tick. A worker that consumes no queue of
items neither pings nor pauses.

This works with every broker. Pools other than prefork execute what they have received before the pause.
"""

from __future__ import annotations

from collections import defaultdict
from threading import Event
from typing import Any

from celery import bootsteps
from celery.worker import state
from celery.worker.request import Request
from kombu import Queue

from beat_schedule import systems
from models import database
from queue_manager.core.background import ServiceThread
from queue_manager.core.clock import seconds
from queue_manager.core.errors import Unavailable, reason
from queue_manager.core.log import get_logger
from queue_manager.system import item_queues
from tasks.app import app
from tasks.item import ItemTask

DATABASE_PING_INTERVAL = 1.0  # seconds
PING_TIMEOUT = seconds(3)  # less than an election of MongoDB may take: nothing can be written meanwhile

log = get_logger("QM/tasks")


class Pings(ServiceThread):
    """Pings MongoDB from a thread of the worker's main process."""

    problem: str | None = None
    """Why MongoDB cannot be reached; `None` if it can."""

    def __init__(self) -> None:
        super().__init__(self._run, name="mongodb-pings")

    def stop(self) -> None:
        super().stop()
        self.problem = None  # another worker of this process begins without a pause

    def _run(self, is_over: Event) -> None:
        while not is_over.wait(DATABASE_PING_INTERVAL):
            if not _item_queues():
                self.problem = None
                continue
            try:
                with database.within(PING_TIMEOUT):
                    database.ping()
            except database.Error as error:
                self.problem = f"MongoDB does not answer ({reason(error)})"
            else:
                self.problem = None


pings = Pings()


class DatabasePause(bootsteps.StartStopStep):
    """The step of the worker's consumer that pauses and resumes. It runs once per connection to the broker."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    _timer: Any = None

    def start(self, consumer: Any) -> None:
        self._is_paused = False
        self._timer = consumer.timer.call_repeatedly(
            DATABASE_PING_INTERVAL, consumer.call_soon, (self._check, consumer)
        )
        pings.start()  # again, if the consumer has restarted, which changes nothing

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:  # Celery also stops steps that have not started
            self._timer.cancel()

    def _check(self, consumer: Any) -> None:
        if consumer.task_consumer is None:  # it shuts down
            return
        if pings.problem is not None:
            self._pause(consumer, pings.problem)
        elif self._is_paused:
            self._resume(consumer)

    def _pause(self, consumer: Any, problem: str) -> None:
        if not self._is_paused:
            log.warning(f"This worker takes no items until MongoDB answers: {problem}")
            self._is_paused = True
            for queue in _item_queues():
                consumer.task_consumer.cancel_by_queue(queue)
        if consumer.pool.uses_semaphore:
            self._put_back(consumer)

    def _put_back(self, consumer: Any) -> None:
        """Requeue the items that no process executes, so that other workers have them."""
        of_task: dict[ItemTask, list[Request]] = defaultdict(list)
        for request in [*state.scheduled_requests, *state.reserved_requests - state.active_requests]:
            if isinstance(request.task, ItemTask):
                request.put_back(consumer)
                of_task[request.task].append(request)
        for task, requests in of_task.items():
            work = task.work()
            items = [task.read_item(work, one.id, one.args, one.kwargs) for one in requests]
            try:
                work.postpone([item for item in items if item is not None], wait=seconds(0))
            except Unavailable as error:
                log.warning("Items that were put back are dispatched again after one lease", error=reason(error))

    def _resume(self, consumer: Any) -> None:
        log.info("MongoDB answers: this worker takes items again")
        self._is_paused = False
        for queue in _item_queues():
            consumer.task_consumer.add_queue(queue)
        consumer.task_consumer.consume()


def _item_queues() -> list[Queue]:
    """Return the queues of items that this worker is to consume."""
    names = item_queues(systems())
    consumed = list(app.amqp.queues.consume_from.items())  # which the main thread may change
    return [queue for name, queue in consumed if name in names]


app.steps["consumer"].add(DatabasePause)
