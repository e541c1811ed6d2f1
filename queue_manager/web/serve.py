"""`queue-manager web`: the application on uvicorn, in one process or several, until SIGTERM or Ctrl-C.

Guarantee: it stops within about 2 s, also while clients are connected; without keys it listens on loopback only.
Several processes accept connections on one socket; one that dies is replaced, one that cannot start ends them all.
They end with the one that started them.
"""

from __future__ import annotations

import asyncio
import logging as stdlib_logging
import signal
import socket
import sys
from contextlib import suppress

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from beat_schedule import warnings
from queue_manager.core import log as logging
from queue_manager.core.child_processes import ChildProcesses
from queue_manager.core.errors import ConfigurationError, reason
from queue_manager.core.loopback import is_loopback
from queue_manager.core.redis_client import REDIS_OUTAGES
from queue_manager.core.server_check import require_queue_server
from queue_manager.core.settings import Settings, redact_url, settings
from queue_manager.telemetry import error_reports, tracing
from queue_manager.web.app import create
from queue_manager.web.http.protocol import BoundedHttpProtocol
from queue_manager.web.live.socketio_server import MAX_PACKET_SIZE
from services import message_queue

SHUTDOWN_TIMEOUT = 1  # seconds for running requests
KEEP_ALIVE_TIMEOUT = 150  # seconds; proxies must close idle connections first: nginx does after 60 s, Caddy after 120 s

log = logging.get_logger("QM/web")


def serve(*, host: str, port: int, workers: int = 1) -> None:
    """Serve until the process is stopped.

    Raises:
        ConfigurationError: others could reach it without a key, the keys are invalid, the queue's server is unfit, or
            the address cannot be used.
    """
    chosen = settings()
    _require_keys_or_loopback(host, chosen)
    error_reports.require_sdk()
    tracing.require_opentelemetry()
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
    # uvicorn shuts down at the first signal and then raises it again.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = _Server(config, ending)
    _require_free_address(host, port)
    listener = config.bind_socket()
    names = [f"web-{number}" for number in range(1, workers + 1)]
    with suppress(KeyboardInterrupt):
        if workers == 1 or ChildProcesses(names, fatal_code=STARTUP_FAILURE).run():
            server.run([listener])


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


def _require_free_address(host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigurationError(
            f"--host {host} --port {port}: cannot be used ({error.strerror}); choose another, for example with "
            "QM_WEB_PORT"
        ) from error


def _require_queue_server(url: str) -> None:
    try:
        require_queue_server(url)
    except REDIS_OUTAGES as error:
        # The pages show the outage, and recover from it.
        log.warning(f"The queue's server at {redact_url(url)} does not answer yet", error=reason(error))
