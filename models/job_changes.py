"""What happens to jobs, as it happens: MongoDB's change stream of `jobs_data`, for an event loop.

Guarantee: every change that a majority has, once and in order, after any token that the server's log still reaches.
A change carries the job as it is when the change is read: a later change may show in it already. Documents of another
form are left out, but not their deletion.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from bson import ObjectId
from pymongo import AsyncMongoClient
from pymongo.asynchronous.change_stream import AsyncChangeStream
from pymongo.errors import ExecutionTimeout, NetworkTimeout, OperationFailure, PyMongoError

from models.database import Document, within
from models.job import NAME, is_ours, jobs
from queue_manager.core.clock import seconds
from queue_manager.core.settings import settings

T = TypeVar("T")
Stream = AsyncChangeStream[Document]

OPEN_TIMEOUT = seconds(5)  # in which the server must have found a token in its log, and the first changes after it
WAIT_MS = 250  # that the server waits for a change before it answers that there is none
AT_ONCE = 100  # changes in one answer, so that reading them never holds up the event loop for long
OVER = ("drop", "rename", "invalidate")
RESUMABLE = "ResumableChangeStreamError"
# What nobody shows; and what changed in a job, which is here as a whole.
LEFT_OUT = {"$project": {"updateDescription": 0, "fullDocument.text": 0, "fullDocument.key": 0}}


class Lost(Exception):
    """What came after a token cannot be told: no token, too old, too far back, or the collection was dropped."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A job that was stored, changed or deleted. `job`: as it is now; `None` when there is no such job any more."""

    id: ObjectId
    job: Document | None


@dataclass(frozen=True, kw_only=True)
class Step:
    """How far the stream was read; without a change, nothing happened until then.

    Tokens are texts, and in their order: the server writes them for that.
    """

    token: str
    change: Change | None


class Changes:
    """The changes of all jobs. Opening it waits for nothing; whatever the driver raises reaches the caller."""

    def __init__(self) -> None:
        self._client: AsyncMongoClient[Document] = AsyncMongoClient(
            settings().mongo_db_url,
            appname="queue-manager",
            maxPoolSize=20,
            serverSelectionTimeoutMS=2_000,
            connectTimeoutMS=2_000,
            socketTimeoutMS=WAIT_MS + 5_000,
            waitQueueTimeoutMS=5_000,
        )
        self._steps: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Close what is open, also on the server while it answers."""
        if self._steps:
            await asyncio.wait(self._steps, timeout=4 * WAIT_MS / 1000)
        await self._client.close()

    async def since(self, token: str | None) -> AsyncGenerator[Step, None]:
        """Give what happens after a token, or from now on; and at least every `WAIT_MS` that nothing did.

        Raises: Lost.
        """
        opening = self._beside(self._open(token))
        step: asyncio.Task[Any] = opening
        try:
            stream = await asyncio.shield(opening)
            while True:
                step = self._beside(_next(stream))
                if (found := await asyncio.shield(step)) is not None:
                    yield found
        except OperationFailure as error:
            if token is None or error.has_error_label(RESUMABLE):
                raise
            raise Lost(str(error)) from error
        finally:
            self._beside(_close(opening, step))

    async def _open(self, token: str | None) -> Stream:
        collection = self._client.get_default_database(codec_options=jobs().codec_options)[NAME]
        try:
            # After a token, the server reads its log of all collections; and would again at every retry.
            with within(OPEN_TIMEOUT):
                return await collection.watch(
                    [LEFT_OUT],
                    full_document="updateLookup",
                    resume_after=None if token is None else {"_data": token},
                    max_await_time_ms=WAIT_MS,
                    batch_size=AT_ONCE,
                )
        except (ExecutionTimeout, NetworkTimeout) as error:
            if token is None:
                raise
            raise Lost(f"not resumed within {OPEN_TIMEOUT.total_seconds():g} s") from error

    def _beside(self, step: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin what is done to its end also when whoever reads is canceled.

        A question that is broken off leaves a cursor on the server, for half an hour.
        """
        task = asyncio.create_task(step)
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        return task


async def _close(opening: asyncio.Task[Stream], last: asyncio.Task[Any]) -> None:
    await asyncio.gather(last, return_exceptions=True)
    with suppress(PyMongoError, Lost):
        await (await opening).close()


async def _next(stream: Stream) -> Step | None:
    change = await stream.try_next()
    if change is None:
        token = stream.resume_token
        return None if token is None else Step(token=token["_data"], change=None)
    if change["operationType"] in OVER:
        raise Lost("the collection was dropped")
    key, document = change["documentKey"], change.get("fullDocument")
    if document is not None and not is_ours(document):
        return Step(token=change["_id"]["_data"], change=None)
    return Step(token=change["_id"]["_data"], change=Change(id=key["_id"], job=document))
