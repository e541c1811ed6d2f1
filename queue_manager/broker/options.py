"""What kombu is told about the broker, by the scheme of its URL."""

from __future__ import annotations

import ssl
from typing import Any

from queue_manager.broker.keys import PRIORITIES, TRANSPORT_OPTIONS
from queue_manager.core.settings import Settings

BATCHED_VISIBILITY_TIMEOUT = 30  # seconds; a worker that lives renews what it holds
STOCK_VISIBILITY_TIMEOUT = 6 * 3600  # seconds: kombu's own transports renew nothing, so it outlasts the longest task
AMQP = ("amqp", "amqps")


def transport_options(chosen: Settings) -> dict[str, Any]:
    """Return Celery's `broker_transport_options`."""
    if chosen.broker.startswith(AMQP):
        return {"confirm_publish": True}  # else a message that was sent could be lost without an error
    options = {
        **TRANSPORT_OPTIONS,
        # What a killed worker held comes back after this.
        "visibility_timeout": STOCK_VISIBILITY_TIMEOUT,
        "unacked_restore_interval": 5,
        # Without these, a half-open connection hangs indefinitely.
        "socket_timeout": 10,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 5,
        "priority_steps": [*PRIORITIES],
        "client_name": "queue-manager",
    }
    if chosen.has_batched_broker:
        # An idle worker has one connection for each list that it waits on: it looks at the others every second.
        options |= {"visibility_timeout": BATCHED_VISIBILITY_TIMEOUT, "awaited_priorities": [0]}
    if chosen.broker_redis_url is None:
        options["master_name"] = chosen.qm_sentinel_master
    return options


def timeouts(broker_url: str, seconds: float) -> dict[str, float]:
    """Return the transport options of a connection on which somebody waits no longer than this for each answer."""
    if broker_url.startswith(AMQP):
        return dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), seconds)
    return dict.fromkeys(("socket_timeout", "socket_connect_timeout"), seconds)


def tls_options(broker_url: str) -> dict[str, Any] | None:
    """Return Celery's `broker_use_ssl`: a server's certificate is always verified."""
    if broker_url.startswith("rediss:"):
        return {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    if broker_url.startswith("amqps:"):
        return {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": None}  # None: that of the URL
    return None
