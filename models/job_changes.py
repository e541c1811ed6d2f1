"""Change stream of `jobs_data` for an event loop.

Guarantee: every majority-committed change, once and in order, after any resume token that the oplog still covers. A
change contains the job at the time of reading, so it may already include later changes. Documents that are not jobs are
omitted, except for their deletion.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pymongo.asynchronous.change_stream import AsyncChangeStream
from pymongo.errors import ExecutionTimeout, NetworkTimeout, OperationFailure, PyMongoError

from models.database import LOGIN_REFUSED, Document, is_logged_out, open_async, within
from models.job import JOBS_COLLECTION, is_job, jobs
from queue_manager.core.clock import seconds

Stream = AsyncChangeStream[Document]

OPEN_TIMEOUT = seconds(5)  # for the server to find a token in its oplog and return the first changes
WAIT_MS = 250  # that the server waits for a change before it returns none
CHANGES_PER_REPLY = 100  # so that decoding them does not block the event loop
CHANGES_CLIENT_OPTIONS = {
    "maxPoolSize": 20,
    "serverSelectionTimeoutMS": 2_000,
    "connectTimeoutMS": 2_000,
    "socketTimeoutMS": WAIT_MS + 5_000,
    "waitQueueTimeoutMS": 5_000,
}
TERMINAL_OPERATIONS = ("drop", "rename", "invalidate")
RESUMABLE = "ResumableChangeStreamError"
# A reservation is not a change of the job for others.
NOT_RESERVED = {"$match": {"updateDescription.updatedFields.reserved": {"$exists": False}}}
# Fields that are not used; the change has the full job.
PROJECTION = {"$project": {"updateDescription": 0, "fullDocument.text": 0, "fullDocument.key": 0}}


class Lost(Exception):
    """The stream cannot resume: the token is invalid or too old, or the collection was dropped."""


@dataclass(frozen=True, kw_only=True)
class JobChange:
    """An inserted, updated or deleted job. `job` is its current document, `None` if it does not exist any more."""

    id: Any
    """The id; for a deleted document that was not a job, an id of any type."""
    job: Document | None


@dataclass(frozen=True, kw_only=True)
class Step:
    """Position in the stream, with a change or without one if none happened until then.

    Tokens are texts whose order is the order of the changes.
    """

    token: str
    change: JobChange | None


class Changes:
    """The changes of all jobs. Does not connect on creation. Driver errors are raised unchanged."""

    def __init__(self) -> None:
        self._client = open_async(**CHANGES_CLIENT_OPTIONS)
        self._steps: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Close all cursors, also on the server, and the client."""
        if self._steps:
            await asyncio.wait(self._steps, timeout=4 * WAIT_MS / 1000)
        await self._client.close()

    async def since(self, token: str | None) -> AsyncGenerator[Step, None]:
        """Yield the changes after a token, or from now on; yield a step without change at least every `WAIT_MS`.

        Raises: Lost.
        """
        opening = self._run_to_end(self._open(token))
        step: asyncio.Task[Any] = opening
        try:
            stream = await asyncio.shield(opening)
            while True:
                step = self._run_to_end(_next(stream))
                if (found := await asyncio.shield(step)) is not None:
                    yield found
        except OperationFailure as error:
            if is_logged_out(error):
                logged_out, self._client = self._client, open_async(**CHANGES_CLIENT_OPTIONS)
                await logged_out.close()
                raise
            if token is None or error.code == LOGIN_REFUSED or error.has_error_label(RESUMABLE):
                raise
            raise Lost(str(error)) from error
        finally:
            self._run_to_end(_close(opening, step))

    async def _open(self, token: str | None) -> Stream:
        collection = self._client.get_default_database(codec_options=jobs().codec_options)[JOBS_COLLECTION]
        try:
            # To resume, the server reads its oplog of all collections, again at every retry.
            with within(OPEN_TIMEOUT):
                return await collection.watch(
                    [NOT_RESERVED, PROJECTION],
                    full_document="updateLookup",
                    resume_after=None if token is None else {"_data": token},
                    max_await_time_ms=WAIT_MS,
                    batch_size=CHANGES_PER_REPLY,
                )
        except (ExecutionTimeout, NetworkTimeout) as error:
            if token is None:
                raise
            raise Lost(f"not resumed within {OPEN_TIMEOUT.total_seconds():g} s") from error

    def _run_to_end(self, step: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that completes even if the reader is canceled.

        An interrupted command would leave a cursor open on the server for half an hour.
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
    if change["operationType"] in TERMINAL_OPERATIONS:
        raise Lost("the collection was dropped")
    key, document = change["documentKey"], change.get("fullDocument")
    if document is not None and not is_job(document):
        return Step(token=change["_id"]["_data"], change=None)
    return Step(token=change["_id"]["_data"], change=JobChange(id=key["_id"], job=document))
