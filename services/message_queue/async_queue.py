"""The message queue for coroutines.

    queue = async_message_queue()
    await queue.enqueue([{"type": "send_mail", "payload": {"to": "ada@example.org"}}])

Guarantee: that of `MessageQueue`. The scripts of concurrent calls in one event loop share a round trip, in the order of
the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from queue_manager.core.background import CallThread
from services.message_queue.messages import Message, NewMessage, QueueOptions
from services.message_queue.operations import EnqueueResult, Operation, Operations, Result, TouchResult
from services.message_queue.scripts import ScriptCall, Scripts

MAX_CALLS_PER_ROUND_TRIP = 100
DELIVERIES = ("dequeue", "dequeue_typed")  # not sent for a caller that was cancelled, which could not ack the message


class AsyncMessageQueue:
    """One queue on one server, for the event loops of all threads."""

    def __init__(self, scripts: Scripts, options: QueueOptions) -> None:
        self.options = options
        self._scripts, self._operations = scripts, Operations(options)
        self._loops = WeakKeyDictionary[asyncio.AbstractEventLoop, _Calls]()

    async def enqueue(self, messages: Sequence[NewMessage | Mapping[str, Any]]) -> list[EnqueueResult]:
        """Like `MessageQueue.enqueue_batch`."""
        return await self._run(self._operations.enqueue(messages))

    async def take(
        self, *, ack_timeout: float | None = None, type: str | None = None, consumer_id: str | None = None
    ) -> Message | None:
        """Like `MessageQueue.dequeue`, without waiting."""
        found = self._operations.search(ack_timeout=ack_timeout, type=type, consumer_id=consumer_id)
        messages = await self._run(found)
        return messages[0] if messages else None

    async def ack(self, id: str, lock_token: str | None = None) -> None:
        """Like `MessageQueue.ack`."""
        await self._run(self._operations.ack(id, lock_token))

    async def nack(self, id: str, lock_token: str | None = None, reason: str | None = None) -> bool:
        """Like `MessageQueue.nack`."""
        return await self._run(self._operations.nack(id, lock_token, reason))

    async def touch(self, id: str, lock_token: str | None = None, extend_seconds: float | None = None) -> TouchResult:
        """Like `MessageQueue.touch`."""
        return await self._run(self._operations.touch(id, lock_token, extend_seconds))

    async def _run(self, operation: Operation[Result]) -> Result:
        loop = asyncio.get_running_loop()
        if (calls := self._loops.get(loop)) is None:
            calls = self._loops[loop] = _Calls(self._scripts)
        reply = None
        while True:
            try:
                call = operation.send(reply)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            reply = await calls.send(call)


class _Calls:
    """The calls of one event loop."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._waiting: list[tuple[ScriptCall, asyncio.Future[Any]]] = []
        self._sender: asyncio.Task[None] | None = None
        self._thread = CallThread("message-queue")  # redis-py's pipeline takes less time than its coroutines

    async def send(self, call: ScriptCall) -> Any:
        reply = asyncio.get_running_loop().create_future()
        self._waiting.append((call, reply))
        if self._sender is None:
            self._start_sender()
        return await reply

    def _start_sender(self) -> None:
        self._sender = asyncio.create_task(self._send_waiting())
        self._sender.add_done_callback(self._sender_ended)

    def _sender_ended(self, _: asyncio.Task[None]) -> None:
        """Send what is left: a program that ends cancels all tasks, also the sender, and may still reject messages."""
        self._sender = None
        self._waiting = [(call, reply) for call, reply in self._waiting if not reply.done()]
        if self._waiting:
            self._start_sender()

    async def _send_waiting(self) -> None:
        while self._waiting:
            calls, self._waiting = self._waiting[:MAX_CALLS_PER_ROUND_TRIP], self._waiting[MAX_CALLS_PER_ROUND_TRIP:]
            calls = [(call, future) for call, future in calls if not (call[0] in DELIVERIES and future.done())]
            for (_, future), reply in zip(calls, await self._replies([call for call, _ in calls]), strict=True):
                if future.done():  # the caller was cancelled
                    continue
                if isinstance(reply, Exception):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)

    async def _replies(self, calls: Sequence[ScriptCall]) -> Sequence[Any]:
        if not calls:
            return []
        try:
            return await self._thread.run(self._scripts.run_all, calls)
        except Exception as error:  # each caller gets it
            return [error] * len(calls)
