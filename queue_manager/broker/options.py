"""Celery's broker settings, by the scheme of the URL: the transport, its options, and TLS."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import urlsplit

import kombu.connection
import kombu.transport

from queue_manager.broker.keys import PRIORITIES, TRANSPORT_OPTIONS
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import Settings

BATCHED_VISIBILITY_TIMEOUT = 30  # seconds; a live worker renews the messages that it holds
STOCK_VISIBILITY_TIMEOUT = 6 * 3600  # seconds; longer than any task, because kombu's own transports do not renew
AMQP_SCHEMES = ("amqp", "amqps")
BATCHED_TRANSPORTS = {
    "redis": "queue_manager.broker.transport:Transport",
    "rediss": "queue_manager.broker.transport:SecureTransport",
}


def register_transport(broker_url: str) -> str:
    """Register our transports with kombu; return Celery's `broker_transport` for `broker_url`.

    `broker_url` stays the stock URL, which Flower and others read. Connections report the stock scheme as well.

    Raises:
        ConfigurationError: the URL is for another kind of broker.
    """
    scheme = urlsplit(broker_url).scheme
    if scheme not in BATCHED_TRANSPORTS:
        raise ConfigurationError(
            f"{scheme}:// is not supported as a broker; it must be one of {', '.join(BATCHED_TRANSPORTS)}"
        )
    for name, transport in BATCHED_TRANSPORTS.items():
        kombu.transport.TRANSPORT_ALIASES[f"batched-{name}"] = transport
        kombu.connection.resolve_aliases[f"batched-{name}"] = name
    return f"batched-{scheme}"


def transport_options(chosen: Settings) -> dict[str, Any]:
    """Return Celery's `broker_transport_options`."""
    if chosen.broker.startswith(AMQP_SCHEMES):
        return {"confirm_publish": True}  # otherwise a message may be lost without an error
    options = {
        **TRANSPORT_OPTIONS,
        # Messages of a killed worker are redelivered after this time.
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
        # An idle worker has a connection for each list of priority 0; it polls the other lists every second.
        options |= {"visibility_timeout": BATCHED_VISIBILITY_TIMEOUT, "awaited_priorities": [0]}
    if chosen.broker_redis_url is None:
        options["master_name"] = chosen.qm_sentinel_master
    return options


def timeouts(broker_url: str, seconds: float) -> dict[str, float]:
    """Return the transport options of a connection that waits at most `seconds` for each reply."""
    if broker_url.startswith(AMQP_SCHEMES):
        return dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), seconds)
    return dict.fromkeys(("socket_timeout", "socket_connect_timeout"), seconds)


def tls_options(broker_url: str) -> dict[str, Any] | None:
    """Return Celery's `broker_use_ssl`, which always verifies the server's certificate."""
    if broker_url.startswith("rediss:"):
        return {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    if broker_url.startswith("amqps:"):
        return {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": None}  # None: that of the URL
    return None
