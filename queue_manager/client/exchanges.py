"""Requests and responses, described once for `Client` and `AsyncClient`.

An exchange is a generator: it yields requests and pauses, is sent the outcome of each request, and returns the result.
`SyncResource` and `AsyncResource` execute exchanges; the decorators make a method of each description.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial, wraps
from http import HTTPStatus
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload
from urllib.parse import quote

import httpx2
import msgspec

from queue_manager.client.errors import MAX_SERVER_DELAY, ClientError, Retries

EVENTS_TIMEOUT = 45.0  # seconds without an event; the server sends a ping every 15 s
MAX_EVENT_SIZE = 16 * 1024 * 1024

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
DescriptionT = TypeVar("DescriptionT")
SyncT = TypeVar("SyncT")
AsyncT = TypeVar("AsyncT")
HttpClient: TypeAlias = httpx2.Client | httpx2.AsyncClient
Command: TypeAlias = httpx2.Request | float
"""A request, or the seconds until the next one."""
Exchange: TypeAlias = Generator[Command, Any, ResultT]


@dataclass(frozen=True)
class Page(Generic[ResultT]):
    """A part of a list, and the cursor of the next one; `None` on the last page."""

    items: Sequence[ResultT]
    cursor: str | None


@dataclass(frozen=True, kw_only=True)
class ServerEvent:
    """A server-sent event. `reset` is its name if earlier events were lost: read the lists again."""

    name: str
    data: Any
    id: str
    """Pass it as `last_event_id` to continue after this event."""


class EventPosition:
    """The position of a subscriber in a stream of events."""

    def __init__(self, path: str, last_event_id: str | None, retry_for: float) -> None:
        self.path, self.retry_delay = path, 1.0
        self._last_event_id = last_event_id
        self._retries = Retries(retry_for)
        self._was_connected = False

    @property
    def headers(self) -> dict[str, str]:
        return {"Last-Event-ID": self._last_event_id} if self._last_event_id else {}

    def connected(self) -> None:
        """Call it after each successful response, not after the first event, which may take hours."""
        self._retries.reset()
        self._was_connected = True

    def advance(self, received: httpx2.ServerSentEvent) -> ServerEvent | None:
        """Move behind an event, and return it if it has data. Raises `ClientError`: the data is not JSON."""
        self._last_event_id = received.id or self._last_event_id
        if received.retry is not None:
            self.retry_delay = min(max(received.retry, 0), MAX_SERVER_DELAY * 1000) / 1000
        if not received.data:
            return None
        try:
            return ServerEvent(name=received.event, data=_json(received.data), id=received.id)
        except ValueError as error:
            message = f"{self.path} sent an event that is not JSON: {error}"
            raise ClientError(HTTPStatus.OK, "invalid response", message) from error

    def delay_after(self, error: httpx2.RequestError | ClientError) -> float:
        """Return the seconds until the next attempt. Raises `ClientError`."""
        known = ClientError.of_request(error) if isinstance(error, httpx2.RequestError) else error
        if not known.is_temporary:
            raise known
        delay = self._retries.delay_after(known)
        if self._was_connected:  # a server that answers and breaks off at once is not asked without a pause
            self._was_connected, delay = False, max(delay, self.retry_delay)
        return delay


class Resource:
    """A part of the API."""

    def __init__(self, http: HttpClient, retry_for: float) -> None:
        self._http, self._retry_for = http, retry_for

    def _exchange(
        self,
        method: str,
        path: str,
        result: type[ResultT],
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        wait: float = 0,
        is_repeatable: bool = False,
        only_within: float | None = None,
    ) -> Exchange[ResultT]:
        """Send a request and return the decoded response.

        A request that was not sent is repeated; others only if they are a GET or `is_repeatable`.

        Args:
            wait: seconds that the server may wait before it responds.
            only_within: seconds of the only attempt, for a request that soon becomes pointless.

        Raises: ClientError.
        """
        request = self._http.build_request(
            method,
            path,
            params={name: value for name, value in (params or {}).items() if value is not None},
            content=None if body is None else json.dumps(body, allow_nan=False).encode(),
            headers={} if body is None else {"content-type": "application/json"},
            timeout=_timeout(self._http.timeout, wait, only_within),
        )
        retries = Retries(self._retry_for if only_within is None else 0)
        while True:
            outcome: httpx2.Response | httpx2.RequestError = yield request
            if isinstance(outcome, httpx2.RequestError):
                error = ClientError.of_request(outcome)
            elif outcome.is_success:
                return _decoded(outcome, result)
            else:
                error = ClientError.of_response(outcome)
            if not error.is_temporary or not (error.error == "unreachable" or is_repeatable or method == "GET"):
                raise error
            yield retries.delay_after(error)


def path_segment(text: str) -> str:
    """Return a text as one segment of a path, also "." and "..", which httpx would resolve if they were not encoded."""
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


def _timeout(timeout: httpx2.Timeout, wait: float, limit: float | None) -> httpx2.Timeout:
    seconds = {**timeout.as_dict(), "read": None if timeout.read is None else timeout.read + wait}
    if limit is not None:
        seconds = {phase: limit if value is None else min(value, limit) for phase, value in seconds.items()}
    return httpx2.Timeout(**seconds)


def _integer(text: str) -> int | Decimal:
    try:
        return int(text)
    except ValueError:  # Python refuses more than 4,300 digits, and one payload must not make a whole page unreadable
        return Decimal(text)


_json = partial(json.loads, parse_int=_integer)


def _decoded(response: httpx2.Response, result: type[ResultT]) -> ResultT:
    try:
        # Not msgspec's decoder, which refuses the unpaired surrogates that JSON may contain.
        return msgspec.convert(_json(response.content), result, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        message = f"{response.url.path} did not return what was expected: {error}"
        raise ClientError(response.status_code, "invalid response", message) from error


class SyncResource(Resource):
    """Executes exchanges in the calling thread."""

    _http: httpx2.Client

    def _run(self, exchange: Exchange[ResultT]) -> ResultT:
        outcome: httpx2.Response | httpx2.RequestError | None = None
        while True:
            try:
                command = exchange.send(outcome)
            except StopIteration as end:
                return cast(ResultT, end.value)
            if not isinstance(command, httpx2.Request):
                time.sleep(command)
                continue
            try:
                outcome = self._http.send(command)
            except httpx2.RequestError as error:
                outcome = error

    def _iterate(self, page_after: Callable[[str | None], Exchange[Page[ResultT]]]) -> Generator[ResultT, None, None]:
        cursor: str | None = None
        while True:
            page = self._run(page_after(cursor))
            yield from page.items
            if (cursor := page.cursor) is None:
                return

    def _listen(self, position: EventPosition) -> Generator[ServerEvent, None, None]:
        while True:
            try:
                timeout = httpx2.Timeout(self._http.timeout.connect, read=EVENTS_TIMEOUT)
                with self._http.sse(
                    position.path, headers=position.headers, timeout=timeout, max_event_size=MAX_EVENT_SIZE
                ) as source:
                    if not source.response.is_success:
                        source.response.read()
                        raise ClientError.of_response(source.response)
                    position.connected()
                    for received in source:
                        if event := position.advance(received):
                            yield event
                delay = position.retry_delay
            except (httpx2.RequestError, ClientError) as error:
                delay = position.delay_after(error)
            time.sleep(delay)


class AsyncResource(Resource):
    """Executes exchanges in the event loop."""

    _http: httpx2.AsyncClient

    async def _run(self, exchange: Exchange[ResultT]) -> ResultT:
        outcome: httpx2.Response | httpx2.RequestError | None = None
        while True:
            try:
                command = exchange.send(outcome)
            except StopIteration as end:
                return cast(ResultT, end.value)
            if not isinstance(command, httpx2.Request):
                await asyncio.sleep(command)
                continue
            try:
                outcome = await self._http.send(command)
            except httpx2.RequestError as error:
                outcome = error

    async def _iterate(
        self, page_after: Callable[[str | None], Exchange[Page[ResultT]]]
    ) -> AsyncGenerator[ResultT, None]:
        cursor: str | None = None
        while True:
            page = await self._run(page_after(cursor))
            for item in page.items:
                yield item
            if (cursor := page.cursor) is None:
                return

    async def _listen(self, position: EventPosition) -> AsyncGenerator[ServerEvent, None]:
        while True:
            try:
                timeout = httpx2.Timeout(self._http.timeout.connect, read=EVENTS_TIMEOUT)
                async with self._http.sse(
                    position.path, headers=position.headers, timeout=timeout, max_event_size=MAX_EVENT_SIZE
                ) as source:
                    if not source.response.is_success:
                        await source.response.aread()
                        raise ClientError.of_response(source.response)
                    position.connected()
                    async for received in source:
                        if event := position.advance(received):
                            yield event
                delay = position.retry_delay
            except (httpx2.RequestError, ClientError) as error:
                delay = position.delay_after(error)
            await asyncio.sleep(delay)


class Method(Generic[P, DescriptionT, SyncT, AsyncT]):
    """What the decorators make of a description. The attribute of the class is the description itself."""

    def __init__(self, describe: DescriptionT, execute: Callable[[Any, Callable[..., Any]], Any]) -> None:
        self._describe: Any = describe
        self._execute = execute

    @overload
    def __get__(self, instance: None, owner: object) -> DescriptionT: ...
    @overload
    def __get__(self, instance: SyncResource, owner: object) -> Callable[P, SyncT]: ...
    @overload
    def __get__(self, instance: AsyncResource, owner: object) -> Callable[P, AsyncT]: ...
    def __get__(self, instance: Any, owner: object) -> Any:
        if instance is None:
            return self._describe
        describe = self._describe.__get__(instance)
        return wraps(describe)(
            lambda *args, **options: self._execute(instance, lambda *cursor: describe(*cursor, *args, **options))
        )


def operation(
    describe: Callable[Concatenate[Any, P], Exchange[ResultT]],
) -> Method[P, Callable[Concatenate[Any, P], Exchange[ResultT]], ResultT, Coroutine[Any, Any, ResultT]]:
    """A method that returns the result of an exchange; on an `AsyncResource` it is awaited."""
    return Method(describe, lambda resource, describe: resource._run(describe()))


def pages(
    describe: Callable[Concatenate[Any, str | None, P], Exchange[Page[ResultT]]],
) -> Method[P, object, Generator[ResultT, None, None], AsyncGenerator[ResultT, None]]:
    """A method that iterates over all pages of a list; its description takes the cursor of a page."""
    return Method(describe, lambda resource, describe: resource._iterate(describe))


def event_stream(
    describe: Callable[Concatenate[Any, P], EventPosition],
) -> Method[P, object, Generator[ServerEvent, None, None], AsyncGenerator[ServerEvent, None]]:
    """A method that iterates over server-sent events without end, and resumes after a disconnection."""
    return Method(describe, lambda resource, describe: resource._listen(describe()))
