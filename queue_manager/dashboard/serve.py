"""`queue-manager web`: the application on uvicorn, until SIGTERM or Ctrl-C.

Guarantee: it ends within about 2 s, also while clients are connected; without a secret, or with jobs, it listens on
loopback only.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress

import uvicorn

from queue_manager.core import log as logging
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import Settings, settings
from queue_manager.dashboard.application import create
from queue_manager.dashboard.boundary import is_loopback

GRACE = 1  # seconds for what is under way when it is told to end

log = logging.get_logger("QM/web")


def serve(*, host: str, port: int) -> None:
    """Serve until told to end. Raises `ConfigurationError` when others could reach it without a token."""
    chosen = settings()
    _refuse_open_house(host, chosen)
    logging.configure(level=chosen.qm_log_level, form=chosen.qm_log_format)
    for remark in chosen.remarks():
        log.warning(remark)
    config = uvicorn.Config(
        create(chosen),
        host=host,
        port=port,
        ws="wsproto",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    # uvicorn ends in order at the first signal, and then raises it again.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run()


def _refuse_open_house(host: str, chosen: Settings) -> None:
    if is_loopback(host):
        return
    if chosen.runs_jobs:
        raise ConfigurationError(
            f"--host {host}: with QM_JOBS anybody could run and delete jobs, since their API asks for no credentials "
            "yet, so accepted is a loopback address, such as 127.0.0.1; or switch QM_JOBS off for this process"
        )
    if chosen.socketio_token_secret is None:
        raise ConfigurationError(
            f"--host {host}: without SOCKETIO_TOKEN_SECRET anybody could listen to every account, so accepted is a "
            "loopback address, such as 127.0.0.1; or set SOCKETIO_TOKEN_SECRET"
        )
