"""Celery's broker settings, by the scheme of the URL: the transport, its options, and TLS."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import urlsplit

import kombu.connection
import kombu.transport

from queue_manager.broker.keys import PRIORITIES, TRANSPORT_OPTIONS
from queue_manager.core.redis_client import TCP_OPTIONS
from queue_manager.core.redis_url import CREDENTIALS, TLS_FILES, is_encrypted, parse_redis_url
from queue_manager.core.setting_types import AMQP_SCHEMES
from queue_manager.core.settings import Settings

BATCHED_VISIBILITY_TIMEOUT = 10  # seconds; a live worker renews the messages that it holds every quarter of it
STOCK_VISIBILITY_TIMEOUT = 6 * 3600  # seconds; longer than any task, because kombu's own transports do not renew
RESTORE_INTERVAL = 5  # seconds between two searches for messages of killed workers
BATCHED_TRANSPORT = "queue_manager.broker.transport:Transport"
BATCHED_SOCKET = "batched-redis+socket"
"""URL scheme of a Unix socket: kombu takes the transport from its first part and ignores `broker_transport`."""


def register_transport(broker_url: str) -> str:
    """Register our transport with kombu; return Celery's `broker_transport` for the `kombu_url` of a Redis.

    `broker_url` stays the stock URL, which Flower and others read. Connections report the stock scheme as well. TLS is
    enabled by `tls_options`, because kombu does not see the scheme `rediss`.
    """
    for name in ("redis", "rediss", "sentinel"):
        kombu.transport.TRANSPORT_ALIASES[f"batched-{name}"] = BATCHED_TRANSPORT
        kombu.connection.resolve_aliases[f"batched-{name}"] = name
    scheme = urlsplit(broker_url).scheme
    return "batched-redis" if scheme == BATCHED_SOCKET else f"batched-{scheme}"


def kombu_url(chosen: Settings) -> str:
    """Return the broker's URL as kombu and Flower read it, without the options that are settings of Celery."""
    url = chosen.broker.partition("?")[0]
    parts = urlsplit(url)
    if parts.scheme == "unix":  # without credentials: kombu would show them
        return f"{BATCHED_SOCKET}://{parts.path}?virtual_host={parse_redis_url(chosen.broker)['db']}"
    if parts.scheme == "sentinel":
        login, at, nodes = parts.netloc.rpartition("@")
        urls = [f"sentinel://{login}{at}{node}{parts.path}" for node in nodes.split(",")]
        # With several URLs, kombu would continue on its own transport after the first lost connection.
        return urls[0] if chosen.has_batched_broker else ";".join(urls)
    return url


def transport_options(chosen: Settings) -> dict[str, Any]:
    """Return Celery's `broker_transport_options`."""
    if chosen.broker.startswith(AMQP_SCHEMES):
        return {"confirm_publish": True}  # otherwise a message may be lost without an error
    options = {
        **TRANSPORT_OPTIONS,
        # Messages of a killed worker are redelivered after this time.
        "visibility_timeout": STOCK_VISIBILITY_TIMEOUT,
        "unacked_restore_interval": RESTORE_INTERVAL,
        # Without these, a half-open connection hangs indefinitely.
        "socket_timeout": 10,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "socket_keepalive_options": TCP_OPTIONS,
        "health_check_interval": RESTORE_INTERVAL + 1,  # longer, so that regular commands check the connection
        "priority_steps": [*PRIORITIES],
        "client_name": "queue-manager",
    }
    if chosen.has_batched_broker:
        options |= {"visibility_timeout": BATCHED_VISIBILITY_TIMEOUT, "is_of_settings": True}
    if (sentinel := parse_redis_url(chosen.broker).get("sentinel")) is not None:
        # Without its credentials: `celery inspect stats` shows these options. Our channel reads the settings.
        shown = {name: value for name, value in sentinel["sentinel_kwargs"].items() if name not in CREDENTIALS}
        options |= {"master_name": sentinel["master_name"], "sentinel_kwargs": shown}
    return options


def options_beyond_url(broker_url: str) -> dict[str, Any]:
    """Return the options of a connection that the result of `kombu_url` may lack."""
    parsed = parse_redis_url(broker_url)
    return {name: parsed[name] for name in (*CREDENTIALS, "sentinel") if name in parsed}


def timeouts(broker_url: str, seconds: float) -> dict[str, float]:
    """Return the transport options of a connection that waits at most `seconds` for each reply."""
    if broker_url.startswith(AMQP_SCHEMES):
        return dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), seconds)
    return dict.fromkeys(("socket_timeout", "socket_connect_timeout"), seconds)


def tls_options(broker_url: str) -> dict[str, Any] | None:
    """Return Celery's `broker_use_ssl`, which always verifies the server's certificate."""
    if broker_url.startswith("amqps:"):
        return {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": None}  # None: that of the URL
    if broker_url.startswith("amqp:") or not is_encrypted(broker_url, parsed := parse_redis_url(broker_url)):
        return None
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, **{name: parsed[name] for name in TLS_FILES if name in parsed}}
