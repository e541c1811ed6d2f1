"""The clients: connections to the API, and its parts."""

from __future__ import annotations

import os
import ssl
from typing import Any
from weakref import WeakKeyDictionary

import httpx2

from queue_manager.client.exchanges import HttpClient
from queue_manager.client.jobs import AsyncJobClient, JobClient
from queue_manager.client.messages import AsyncMessageClient, MessageClient
from queue_manager.client.systems import AsyncSystemClient, SystemClient

MAX_IDLE_CONNECTIONS = 20
CHANGEABLE = (  # attributes of the underlying client that a program may set
    *("auth", "base_url", "cookies", "event_hooks", "follow_redirects"),
    *("headers", "max_redirects", "params", "timeout"),
)

_options_of: WeakKeyDictionary[HttpClient, dict[str, Any]] = WeakKeyDictionary()


class Client:
    """A client of the HTTP API. Safe in threads and forked processes; close it, or use it in a `with` block.

    Args:
        base_url: the address of `queue-manager web`, with the path prefix of a proxy, if there is one.
        timeout: seconds to connect, and seconds without any data of a response; long polls wait longer.
        retry_for: seconds in which a request that may be repeated safely is repeated while the server is unavailable;
            0: never; `math.inf`: without end.
        ssl_context: for a private certificate authority or a client certificate.

    Attributes:
        messages, jobs, systems: the operations. All raise `ClientError`.
        http: the underlying client of `httpx2`, for routes that have no method here.

    Raises: ValueError: the address or the key cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout: float = 10.0,
        retry_for: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        options = _options(base_url, api_key, timeout, ssl_context)
        self.http = httpx2.Client(**options)
        _options_of[self.http] = options
        self.messages = MessageClient(self.http, retry_for)
        self.jobs = JobClient(self.http, retry_for)
        self.systems = SystemClient(self.http, retry_for)

    def close(self) -> None:
        """Close its connections."""
        self.http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """A client of the HTTP API for coroutines. The arguments are those of `Client`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout: float = 10.0,
        retry_for: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        options = _options(base_url, api_key, timeout, ssl_context)
        self.http = httpx2.AsyncClient(**options)
        _options_of[self.http] = options
        self.messages = AsyncMessageClient(self.http, retry_for)
        self.jobs = AsyncJobClient(self.http, retry_for)
        self.systems = AsyncSystemClient(self.http, retry_for)

    async def aclose(self) -> None:
        """Close its connections."""
        await self.http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _options(base_url: str, api_key: str | None, timeout: float, ssl_context: ssl.SSLContext | None) -> dict[str, Any]:
    """Return the options of the underlying client. Raises ValueError, without the key: httpx's errors contain it."""
    address = httpx2.URL(base_url)
    if address.scheme not in ("http", "https") or not address.host:
        raise ValueError("base_url: must start with http:// or https:// and a host")
    if api_key is not None and not (api_key.isprintable() and api_key == api_key.strip()):
        raise ValueError("api_key: must be printable, without spaces or a line break at its ends")
    headers = {"user-agent": "queue-manager-client"} | ({} if api_key is None else {"x-api-key": api_key.encode()})
    verify = httpx2.create_ssl_context() if ssl_context is None else ssl_context
    # No limit of connections: each long poll and stream of events has one, and heartbeats must not wait for theirs.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=MAX_IDLE_CONNECTIONS)
    return {"base_url": base_url, "headers": headers, "timeout": timeout, "verify": verify, "limits": limits}


def _replace_connections() -> None:
    """Give all clients of a forked child connections of its own. Those of the parent are not closed: it uses them."""
    for http, options in list(_options_of.items()):
        if not http.is_closed:
            chosen = {name: getattr(http, name) for name in CHANGEABLE}
            kind: Any = type(http)
            kind.__init__(http, **options)  # not another object: programs may hold this one
            for name, value in chosen.items():
                setattr(http, name, value)


if hasattr(os, "register_at_fork"):  # Windows does not have it
    os.register_at_fork(after_in_child=_replace_connections)
