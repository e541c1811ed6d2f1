"""`queue-manager web`: the application on uvicorn, in one process or several, until SIGTERM or Ctrl-C.

Guarantee: it stops within about 2 s, also while clients are connected, unless a request is being handled in a thread:
that is completed first, in up to about 15 s if a server does not answer, so that what it changes is recorded.
Without keys it listens on loopback only.
Several processes accept connections on one socket; one that dies is replaced, one that cannot start ends them all.
They end with the one that started them. The memory and the time that a client can take to send a request are bounded.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging as stdlib_logging
import signal
import socket
import sys
from contextlib import suppress

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from beat_schedule import warnings
from queue_manager.core import log as logging
from queue_manager.core.child_processes import ChildProcesses
from queue_manager.core.errors import ConfigurationError, reason
from queue_manager.core.imports import require_extras
from queue_manager.core.loopback import is_loopback
from queue_manager.core.redis_client import REDIS_OUTAGES
from queue_manager.core.server_check import require_server
from queue_manager.core.settings import Settings, redact_url, settings
from queue_manager.web.app import create
from queue_manager.web.live.socketio_server import MAX_PACKET_SIZE
from services import message_queue

SHUTDOWN_TIMEOUT = 1  # seconds for running requests
KEEP_ALIVE_TIMEOUT = 150  # seconds; proxies must close idle connections first: nginx does after 60 s, Caddy after 120 s
MAX_HEAD_SIZE = 64 * 1024  # bytes of the request line and headers, or of a body's trailers
CLIENT_TIMEOUT = 60  # seconds for a request's head, between parts of its body, and between reads, as in nginx

log = logging.get_logger("QM/web")


def serve(*, host: str, port: int, workers: int = 1) -> None:
    """Serve until the process is stopped.

    Raises:
        ConfigurationError: others could reach it without a key, the keys are invalid, the queue's server is unfit, or
            the address cannot be used.
    """
    chosen = settings()
    _require_keys_or_loopback(host, chosen)
    require_extras()
    logging.configure(level=chosen.qm_log_level, form=chosen.qm_log_format)
    stdlib_logging.captureWarnings(True)
    stdlib_logging.getLogger("uvicorn.error").addFilter(_without_query)
    if chosen.qm_message_queue:
        _require_queue_server(message_queue.server_url())
    for warning in warnings():
        log.warning(warning)
    ending = asyncio.Event()
    config = uvicorn.Config(
        create(chosen, ending),
        host=host,
        port=port,
        http=BoundedHttpProtocol,
        ws="wsproto",
        ws_max_size=MAX_PACKET_SIZE,
        # A frame would be decompressed, into a thousand times its size, before its size is checked.
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT,
    )
    config.forwarded_allow_ips = _also_mapped(config.forwarded_allow_ips)
    # uvicorn shuts down at the first signal and then raises it again.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = _Server(config, ending)
    listener = _listener(config)
    names = [f"web-{number}" for number in range(1, workers + 1)]
    with suppress(KeyboardInterrupt):
        if workers == 1 or ChildProcesses(names, fatal_code=STARTUP_FAILURE).run():
            server.run([listener])


def _also_mapped(proxies: list[str] | str) -> list[str] | str:
    """Return the trusted proxies, those over IPv4 also as a socket that listens on `::` shows them."""
    given = proxies.split(",") if isinstance(proxies, str) else proxies
    mapped = []
    for one in given:
        with suppress(ValueError):  # a name, IPv6 or `*`
            network = ipaddress.IPv4Network(one.strip())
            mapped.append(f"::ffff:{network.network_address}/{96 + network.prefixlen}")
    return [*(one.strip() for one in given), *mapped] if mapped else proxies


class BoundedHttpProtocol(HttpToolsProtocol):
    """Refuses a request whose head is too large; uvicorn would keep headers in memory without a limit.

    The part in which a head begins is not counted: it is at most as large as the event loop's buffer.

    Closes a connection whose client sends nothing, half a head, or a part of a body, for `CLIENT_TIMEOUT`. uvicorn
    would keep it until the client closes it: its timeout only begins after a response, and ends with the next byte.
    Linux closes a connection whose client does not read, also one that waits to be closed until all is sent.
    """

    _head_size = 0
    """Bytes that arrived since the request began, or since the last part of its body."""
    _timeout: asyncio.TimerHandle | None = None
    """Runs while the client has to send something: from when the connection, the request or the wait began."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timeout()
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1_000 * CLIENT_TIMEOUT)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timeout()
        if self.timeout_keep_alive_task is not None:  # it would keep the protocol of a connection that the client reset
            self.timeout_keep_alive_task.cancel()

    def data_received(self, data: bytes) -> None:
        self._head_size += len(data)
        super().data_received(data)
        if self._head_size > MAX_HEAD_SIZE and not self.transport.is_closing():
            self.send_400_response("The headers are too large")
        if not self._is_waiting():
            self._stop_timeout()
        elif self._timeout is None:
            self._start_timeout()

    def on_message_begin(self) -> None:
        self._begin_part()
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._begin_part()
        super().on_body(body)

    def _begin_part(self) -> None:
        self._head_size = 0
        self._stop_timeout()

    def _is_waiting(self) -> bool:
        """Return True if nothing happens until the client sends more; False after a change to WebSocket."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return False
        return self.cycle is None or self.cycle.more_body or self.cycle.response_complete

    def _start_timeout(self) -> None:
        self._timeout = self.loop.call_later(CLIENT_TIMEOUT, self._time_out)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _time_out(self) -> None:
        if self.flow.read_paused:  # the application has not read what the client sent before
            self._start_timeout()
        else:
            self.transport.close()


class _Server(uvicorn.Server):
    """Sets `ending` as soon as the shutdown begins; the lifespan ends only after all clients have disconnected."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending.set()
        await super().shutdown(sockets)


def _without_query(record: stdlib_logging.LogRecord) -> bool:
    """Remove the query from the logged path of a WebSocket: clients may send keys and tokens in it."""
    if "WebSocket" in str(record.msg) and isinstance(record.args, tuple):
        record.args = tuple(arg.partition("?")[0] if isinstance(arg, str) else arg for arg in record.args)
    return True


def _require_keys_or_loopback(host: str, chosen: Settings) -> None:
    if not is_loopback(host) and not chosen.has_credentials:
        raise ConfigurationError(
            f"--host {host}: without QM_API_KEYS anybody could use it, so it must be a loopback address, such as "
            "127.0.0.1; or set QM_API_KEYS, or QM_API_KEYS_FILE"
        )


def _listener(config: uvicorn.Config) -> socket.socket:
    try:
        return config.bind_socket()
    except SystemExit as end:
        if not end.code:  # SIGTERM
            raise
        # uvicorn has logged why
        raise ConfigurationError(
            f"--host {config.host} --port {config.port}: cannot be used; choose another, for example with QM_WEB_PORT"
        ) from None


def _require_queue_server(url: str) -> None:
    try:
        require_server(url)
    except REDIS_OUTAGES as error:
        # The pages show the outage, and recover from it.
        log.warning(f"The queue's server at {redact_url(url)} does not answer yet", error=reason(error))
