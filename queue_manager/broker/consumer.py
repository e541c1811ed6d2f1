"""Celery's consumer, which validates headers: a refused message is dead-lettered with the reason.

Celery reads some headers only when it passes a task to the pool, where any error ends the worker. The consumer also
sets how often it reconnects and sends heartbeats, and starts the thread that renews its messages.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from celery.worker.consumer import Consumer as CeleryConsumer
from celery.worker.state import task_reserved
from kombu.exceptions import ContentDisallowed, DecodeError

from queue_manager.broker.channel import Channel
from queue_manager.broker.envelope import MAX_DEPTH, is_shallow

_TEXT_HEADERS = ("id", "shadow", "eta", "expires", "root_id", "parent_id", "group", "argsrepr", "kwargsrepr", "origin")
_HEADER_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_TEXT_HEADERS, (str,)),
    **dict.fromkeys(("retries", "replaced_task_nesting", "group_index"), (int,)),
    "timelimit": (list, tuple),
    "stamped_headers": (list, tuple),
    "stamps": (dict,),
}
MAX_TIME_LIMIT = 1e9  # seconds; timers may refuse larger numbers

SHUTDOWN_MARGIN = 3.0  # seconds for what a soft shutdown does before and after it waits
WORKER_EVENT_INTERVAL = 5.0  # seconds between two `worker-heartbeat` events, which contain it; Celery's default is 2
# Messages that all processes prefetch by default. Above 65,535, including those with an ETA, kombu sets no limit.
MAX_PREFETCH_COUNT = 30_000
MAX_SINGLE_PER_PROCESS = 4  # messages of each queue of tasks that are executed one by one: a reserved job waits
# Seconds between two attempts to reach the broker: 1, 2, 3, 4, 4, 4, …
RECONNECT_INTERVALS = {"interval_start": 1, "interval_step": 1, "interval_max": 4}

logger = get_logger(__name__)


class Consumer(CeleryConsumer):
    """Selected by the setting `worker_consumer`."""

    initial_prefetch_count: int
    prefetch_multiplier: int

    def __init__(self, *args: Any, worker_options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self._calls: deque[Callable[[], Any]] = deque()
        self.batched_queues: set[str] = set()
        given = worker_options or {}
        every = given.get("heartbeat_interval") or WORKER_EVENT_INTERVAL
        super().__init__(*args, worker_options={**given, "heartbeat_interval": every}, **kwargs)
        default = self.app.conf.worker_prefetch_multiplier
        self._is_default_prefetch = bool(default) and self.prefetch_multiplier == default  # that of the Procfile, too
        if self._is_default_prefetch:
            processes = self.initial_prefetch_count // default
            self.prefetch_multiplier = max(1, min(default, MAX_PREFETCH_COUNT // processes))
            self.initial_prefetch_count = processes * self.prefetch_multiplier

    def ensure_connected(self, conn: Any) -> Any:
        """Connect to the broker. Celery would wait up to 30 seconds between two attempts."""
        conn.ensure_connection = partial(conn.ensure_connection, **RECONNECT_INTERVALS)
        return super().ensure_connected(conn)

    def call_soon(self, p: Any, *args: Any, **kwargs: Any) -> Any:
        """Schedule a call after earlier ones. Kombu's hub would use any order, such as a cancel before its add."""
        if not self.hub:
            return super().call_soon(p, *args, **kwargs)
        self._calls.append(partial(p, *args, **kwargs))
        return self.hub.call_soon(self._make_calls)

    def _make_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        handle, handlers = super().create_task_handler(*args, **kwargs), self.strategies
        has_processes = self.hub is not None and self.pool.uses_semaphore  # other pools may acknowledge in a thread
        self._adapt_to_pool()

        def validate_and_handle(message: Any) -> Any:
            if invalid := _invalid_header(message.headers) or _invalid_payload(message):
                return self.on_invalid_task(None, message, InvalidTaskError(invalid))
            # Settled at once: Celery does it by promises, in the next turn of the event loop. After a lost connection
            # they also restore the prefetch count.
            of_task = handlers.get(message.headers.get("task")) if has_processes else None
            if of_task is None or not self._maximum_prefetch_restored:
                return handle(message)
            try:
                return of_task(message, None, message.ack_log_error, message.reject_log_error, self.on_task_message)
            except (InvalidTaskError, ContentDisallowed) as error:
                return self.on_invalid_task(None, message, error)
            except DecodeError as error:
                return self.on_decode_error(message, error)

        return validate_and_handle

    def _adapt_to_pool(self) -> None:
        channel = self.task_consumer.channel
        if not isinstance(channel, Channel):
            return
        # The event loop of a prefork worker runs while tasks do: if it pauses longer than a soft shutdown, it hangs.
        soft_shutdown = self.app.conf.worker_soft_shutdown_timeout + SHUTDOWN_MARGIN
        max_pause = max(channel.visibility_timeout, soft_shutdown) if self.pool.uses_semaphore else math.inf
        channel.connection.cycle.renew_in_thread(channel.visibility_timeout / 4, max_pause=max_pause)
        if self._is_default_prefetch:
            channel.qos.batched_queues = self.batched_queues
            channel.qos.max_single = lambda: MAX_SINGLE_PER_PROCESS * self.pool.num_processes
        if isinstance(self.pool, SoloPool):  # it executes a message on delivery, and the rest of a batch would wait
            channel.take_batch_size = 1

    def _limit_task(self, request: Any, bucket: Any, tokens: Any) -> Any:
        task_reserved(request)  # so that the item's lease is renewed while the rate limit delays it
        return super()._limit_task(request, bucket, tokens)

    def _limit_move_to_pool(self, request: Any) -> None:
        if not request._already_revoked:  # nor put back while the rate limit delayed it
            super()._limit_move_to_pool(request)

    def _limit_post_eta(self, request: Any, bucket: Any, tokens: Any) -> Any:
        task_reserved(request)
        return super()._limit_post_eta(request, bucket, tokens)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        message.reject_reason = "It is not a task message: it has no header `task`"
        super().on_unknown_message(body, message)

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        message.reject_reason = f"No task with this name is registered: {message.headers.get('task')!r:.200}"
        super().on_unknown_task(body, message, exc)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        message.reject_reason = f"Celery refused it: {exc!s:.300}"
        super().on_invalid_task(body, message, exc)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Reject the message; Celery would acknowledge it."""
        message.reject_reason = f"Its body cannot be read: {exc!r:.300}"
        message.reject_log_error(logger, self.connection_errors)


def _invalid_payload(message: Any) -> str | None:
    """Return what is wrong with a body: with its arguments, options, or headers, which protocol 1 has there."""
    try:
        payload = message.payload  # cached, because Celery decodes it too
    except Exception:  # reported when the message is handled
        return None
    if not is_shallow(message.body, payload):
        return f"its arguments are nested deeper than {MAX_DEPTH} levels"  # could not be pickled for the pool
    if isinstance(payload, dict):
        return _invalid_header(payload)
    # Celery merges the options into the request before it handles errors: in a pool of threads, the task never ended.
    options = payload[2] if isinstance(payload, list) and len(payload) == 3 else None
    return f"its options are not an object: {options!r:.100}" if options and not isinstance(options, dict) else None


def _invalid_header(headers: dict[str, Any]) -> str | None:
    """Return the first header whose value has a type that Celery does not expect. A UUID is replaced by its text."""
    for name, value in headers.items():
        kinds = _HEADER_TYPES.get(name)
        if kinds is not None and value is not None and not isinstance(value, kinds):
            if not isinstance(value, UUID) or str not in kinds:
                return f"header {name}: {value!r:.100}"
            headers[name] = str(value)
    limits, stamped = headers.get("timelimit"), headers.get("stamped_headers")
    if limits and not (len(limits) == 2 and all(map(_is_time_limit, limits))):
        return f"header timelimit: {limits!r:.100}"
    if stamped and not all(isinstance(name, str) for name in stamped):
        return f"header stamped_headers: {stamped!r:.100}"
    return None


def _is_time_limit(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and abs(value) <= MAX_TIME_LIMIT)
