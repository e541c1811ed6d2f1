"""Celery's consumer, which refuses what would end the worker, and says why: the reason is kept with the dead letter.

Celery reads some headers only when a task goes to the pool, where an error of any kind ends the worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from celery.worker.consumer import Consumer as CeleryConsumer
from celery.worker.state import task_reserved

from queue_manager.broker.transport import Transport

_TEXTS = ("id", "shadow", "eta", "expires", "root_id", "parent_id", "group", "argsrepr", "kwargsrepr", "origin")
_ACCEPTED: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys(("retries", "replaced_task_nesting", "group_index"), (int,)),
    "timelimit": (list, tuple),
    "stamped_headers": (list, tuple),
    "stamps": (dict,),
}
_NUMBERS = (int, float, type(None))

logger = get_logger(__name__)


class Consumer(CeleryConsumer):
    """Selected by the setting `worker_consumer`."""

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        handle = super().create_task_handler(*args, **kwargs)
        self._keep_by_thread()

        def checked(message: Any) -> Any:
            wrong = _wrong(message.headers) or _wrong_in_payload(message)
            if wrong:
                return self.on_invalid_task(None, message, InvalidTaskError(wrong))
            return handle(message)

        return checked

    def _keep_by_thread(self) -> None:
        # Only prefork has an event loop that turns while tasks run, also during a warm shutdown.
        transport = self.connection.transport
        if not self.pool.uses_semaphore and isinstance(transport, Transport):
            transport.keep_by_thread()

    def _limit_task(self, request: Any, bucket: Any, tokens: Any) -> Any:
        task_reserved(request)  # an item's lease is renewed while the rate limit has it wait
        return super()._limit_task(request, bucket, tokens)

    def _limit_post_eta(self, request: Any, bucket: Any, tokens: Any) -> Any:
        task_reserved(request)
        return super()._limit_post_eta(request, bucket, tokens)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        message.why = "It is no task: its headers name none"
        super().on_unknown_message(body, message)

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        message.why = f"No task here has this name: {message.headers.get('task')!r:.200}"
        super().on_unknown_task(body, message, exc)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        message.why = f"It is no task as Celery makes them: {exc!s:.300}"
        super().on_invalid_task(body, message, exc)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Keep it, where Celery acknowledges it."""
        message.why = f"Its body cannot be read: {exc!r:.300}"
        message.reject_log_error(logger, self.connection_errors)


def _wrong_in_payload(message: Any) -> str | None:
    """Return the same for a message of Celery's first protocol, whose body has what are headers in the second."""
    try:
        payload = message.payload  # Celery decodes it, too; it is kept
    except Exception:  # it says so itself when it is handled
        return None
    return _wrong(payload) if isinstance(payload, dict) else None


def _wrong(headers: dict[str, Any]) -> str | None:
    """Return which header has a value that Celery does not expect."""
    for name, kinds in _ACCEPTED.items():
        value = headers.get(name)
        if value is not None and not isinstance(value, kinds):
            return f"header {name}: {value!r:.100}"
    limits, stamped = headers.get("timelimit"), headers.get("stamped_headers")
    if limits and not (len(limits) == 2 and all(isinstance(limit, _NUMBERS) for limit in limits)):
        return f"header timelimit: {limits!r:.100}"
    if stamped and not all(isinstance(name, str) for name in stamped):
        return f"header stamped_headers: {stamped!r:.100}"
    return None
