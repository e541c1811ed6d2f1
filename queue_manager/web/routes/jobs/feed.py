"""Changes of jobs, read once for the whole process, and only while there are listeners.

Guarantee: that of `event_stream`, also over restarts and step-downs of MongoDB, as far back as its oplog reaches.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from datetime import datetime, timedelta
from types import TracebackType

from models import database
from models.database import server_now
from models.job_changes import Changes, JobChange, Lost, Step
from queue_manager.core.clock import to_iso
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import redact_url, settings
from queue_manager.web.live import event_stream
from queue_manager.web.server_calls import Unavailable
from services.job_queues import as_json

NAME = "job-update"
RETRY_DELAY = 0.5  # seconds between two tries
READER_TIMEOUT = 2.0  # seconds that a listener waits for the reader
MARK_INTERVAL = 10.0  # seconds; a listener without events must still come back with a token that the oplog reaches
CLOCK_INTERVAL = 1.0  # seconds
TOKEN = re.compile(r"(?:[0-9A-F]{2}){1,1000}")

Event = event_stream.Event[str]
Beginning = event_stream.Beginning[str]

log = get_logger("QM/job-events")


class Feed(event_stream.Feed[str]):
    """The one reader of the changes of jobs. Positions are tokens of the change stream.

    Args:
        ending: is set when the process is told to end, while clients are still connected.
    """

    outages = (database.Error, Unavailable)

    def __init__(self, ending: asyncio.Event) -> None:
        super().__init__()
        self._ending = ending
        self._clock = _Clock()
        self._position: str | None = None
        self._has_moved, self._is_wanted = asyncio.Event(), asyncio.Event()
        self._is_away = False
        self._marked_at = 0.0

    async def __aenter__(self) -> Feed:
        self._changes = Changes()
        self._tasks = [asyncio.create_task(run()) for run in (self._run, self._end_with_process)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_listeners()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._changes.close()

    @contextmanager
    def listening(self) -> Iterator[event_stream.Listener[str]]:
        self._is_wanted.set()
        with super().listening() as listener:
            yield listener

    async def beginning(self, last: str | None) -> Beginning:
        """Return where to begin for one who has seen everything up to `last`, or wants what comes from now on.

        Raises: Unavailable.
        """
        is_token = last is not None and TOKEN.fullmatch(last) is not None
        with self.listening():  # the reader runs
            now = await self._reached(last if is_token else None)
        if last is None:
            return Beginning(now, now)
        if not is_token or last > now:  # or of a server that has lost its data since
            return Beginning(now, now, is_gap=True)
        return Beginning(last, last)

    async def _history(self, after: str) -> AsyncGenerator[list[Event], None]:
        until = await self._reached()
        if after >= until:
            return
        try:
            async with aclosing(self._changes.since(after)) as steps:
                async for step in steps:
                    yield [] if step.change is None else [await self._event(step.token, step.change)]
                    if step.token >= until:
                        return
        except Lost:
            yield [event_stream.reset(until, until)]

    async def _reached(self, wanted: str | None = None) -> str:
        """Return how far the reader is, which may be ahead of it in another process. Raises `Unavailable`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READER_TIMEOUT):
                while self._position is None or (wanted is not None and self._position < wanted):
                    await self._has_moved.wait()
        if self._position is None:
            url = redact_url(settings().mongo_db_url)
            raise Unavailable(f"MongoDB at {url} does not answer, so there are no events yet")
        return self._position

    async def _event(self, token: str, change: JobChange) -> Event:
        event = {
            "id": str(change.id),
            "kind": "deleted" if change.job is None else "changed",
            "job": None if change.job is None else as_json(change.job),
            "server_time": to_iso(await self._clock.now()),
        }
        return Event(token, token, NAME, json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode())

    # The reader

    async def _run(self) -> None:
        while True:
            await self._somebody()
            try:
                await self._read()
            except Lost:
                self._position = None  # listeners that come back get a reset
                self._let_go()
            except Exception as error:  # all listeners depend on this one reader
                if not self._is_away:
                    url = redact_url(settings().mongo_db_url)
                    log.warning(f"No job events: MongoDB at {url} does not give them ({reason(error)}); trying on")
                self._is_away = True
                await asyncio.sleep(RETRY_DELAY)

    async def _somebody(self) -> None:
        """Wait until somebody listens: to read for nobody would cost as much as the jobs cost."""
        if not self._listeners:
            self._position = None
            self._is_wanted.clear()
        await self._is_wanted.wait()

    async def _read(self) -> None:
        """Read while somebody listens."""
        async with aclosing(self._changes.since(self._position)) as steps:
            async for step in steps:
                if self._is_away:
                    log.info("Job events flow again")
                self._is_away = False
                await self._take(step)
                if not self._listeners:
                    return

    async def _take(self, step: Step) -> None:
        if step.change is not None:
            self._pass_on([await self._event(step.token, step.change)])
        elif time.monotonic() - self._marked_at > MARK_INTERVAL:
            self._pass_on([Event(step.token, step.token, "", b"")])
            self._marked_at = time.monotonic()
        self._position = step.token
        self._has_moved.set()
        self._has_moved = asyncio.Event()

    async def _end_with_process(self) -> None:
        await self._ending.wait()
        self.end_listeners()


class _Clock:
    """The database server's time, for an event loop, which must not wait for it."""

    def __init__(self) -> None:
        self._asked: tuple[datetime, float] | None = None

    async def now(self) -> datetime:
        """Raises what the driver raises."""
        if self._asked is None or time.monotonic() - self._asked[1] > CLOCK_INTERVAL:
            self._asked = (await asyncio.to_thread(server_now), time.monotonic())
        asked, at = self._asked
        return asked + timedelta(seconds=time.monotonic() - at)
