"""The one error of the clients, and when a request is repeated."""

from __future__ import annotations

import json
import logging
import random
import time
from http import HTTPStatus

import httpx2

NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
TEMPORARY_STATUSES = {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
FIRST_RETRY_DELAY, MAX_RETRY_DELAY = 0.1, 5.0  # seconds
MAX_SERVER_DELAY = 300.0  # seconds that a response can make a client wait, which a proxy may have written
MAX_QUOTED_LENGTH = 200  # characters of a response that is not ours

log = logging.getLogger("queue_manager.client")


class ClientError(Exception):
    """A request failed.

    Attributes:
        status: the HTTP status; `None` without a response.
        error: the kind of error, such as `not found`, `invalid`, `LOCK_LOST` or `blocked`. Without a response it is
            `unreachable` if nothing was sent, or `no response`, which leaves open whether the request took effect.
        message: a human-readable message.
        field: the parameter or member of the body that is wrong, if the error is about one.
    """

    def __init__(
        self, status: int | None, error: str, message: str, *, field: str | None = None, retry_after: float = 0
    ) -> None:
        super().__init__(status, error, message)
        self.status, self.error, self.message, self.field = status, error, message, field
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.error if self.status is None else f'{self.status} {self.error}'}: {self.message}"

    @property
    def is_temporary(self) -> bool:
        """Return True if the same request may succeed later."""
        return self.status is None or self.status in TEMPORARY_STATUSES

    @classmethod
    def of_response(cls, response: httpx2.Response) -> ClientError:
        """Return the error of a response, which a proxy may have written."""
        retry_after = response.headers.get("retry-after", "")
        delay = min(float(retry_after), MAX_SERVER_DELAY) if retry_after.isdecimal() else 0
        try:
            body = json.loads(response.content)
            error, message, field = body["error"], body["message"], body.get("field")
        except (ValueError, LookupError, TypeError, AttributeError):
            # No redirect is followed: it would send the key elsewhere.
            text = f"to {response.headers['location']}" if response.has_redirect_location else response.text
            error, message, field = response.reason_phrase.lower(), text[:MAX_QUOTED_LENGTH], None
        return cls(response.status_code, error, message, field=field, retry_after=delay)

    @classmethod
    def of_request(cls, error: httpx2.RequestError) -> ClientError:
        """Return the error of a request without a response, or of a response whose content cannot be read."""
        address = error.request.url.copy_with(query=None, username=None, password=None)
        message = f"{address}: {error or type(error).__name__}"
        # The content is not an event stream, or not compressed as the headers say, and will not be the next time.
        if isinstance(error, httpx2.SSEError | httpx2.DecodingError):
            return cls(HTTPStatus.OK, "invalid response", message)
        return cls(None, "unreachable" if isinstance(error, NOT_SENT) else "no response", message)


class Retries:
    """The waits before the repetitions of a request, which end `retry_for` seconds after its first error."""

    def __init__(self, retry_for: float) -> None:
        self._retry_for = retry_for
        self.reset()

    def reset(self) -> None:
        """Start anew with the next error. Call it after a success."""
        self._ends_at: float | None = None
        self._delay = FIRST_RETRY_DELAY

    def delay_after(self, error: ClientError) -> float:
        """Return the seconds until the next attempt. Raises the error if that is too late."""
        now, is_first = time.monotonic(), self._ends_at is None
        if self._ends_at is None:  # not earlier: a long poll or a quiet event stream may last longer than `retry_for`
            self._ends_at = now + self._retry_for
        delay = max(self._delay * random.uniform(0.5, 1), error.retry_after)
        if now + delay > self._ends_at:
            raise error
        if is_first:  # without end, nothing else would say that a worker waits for its server
            log.warning("The request is repeated, retry_for=%g: %s", self._retry_for, error)
        self._delay = min(self._delay * 2, MAX_RETRY_DELAY)
        return delay
