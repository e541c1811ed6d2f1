"""Making our transport known to kombu, by schemes of its own.

`broker_url` stays the stock URL, which Flower and others read; the setting `broker_transport` selects ours:

    app.conf.broker_transport = install(broker_url)
"""

from __future__ import annotations

from urllib.parse import urlsplit

import kombu.connection
import kombu.transport

from queue_manager.core.errors import ConfigurationError

_MODULE = "queue_manager.broker.transport"
_TRANSPORTS = {"redis": f"{_MODULE}:Transport", "rediss": f"{_MODULE}:SecureTransport"}


def install(broker_url: str) -> str:
    """Make `batched-redis://` and `batched-rediss://` known; return the `broker_transport` for `broker_url`.

    Connections still call themselves by the stock scheme (`as_uri`), which is what Flower looks at.

    Raises:
        ConfigurationError: the URL is for another kind of broker.
    """
    scheme = urlsplit(broker_url).scheme
    if scheme not in _TRANSPORTS:
        raise ConfigurationError(
            f"{scheme}:// is not supported as a broker; it must be one of {', '.join(_TRANSPORTS)}"
        )
    for name, transport in _TRANSPORTS.items():
        kombu.transport.TRANSPORT_ALIASES[f"batched-{name}"] = transport
        kombu.connection.resolve_aliases[f"batched-{name}"] = name
    return f"batched-{scheme}"
