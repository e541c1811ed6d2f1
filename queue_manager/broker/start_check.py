"""What a broker other than the server at REDIS_URL must be like, seen through kombu."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from kombu.transport import redis

from queue_manager.core.errors import ConfigurationError, reason
from queue_manager.core.server_check import refuse_unsuitable
from queue_manager.core.settings import redact_url

AWAY = (OperationalError,)


def require_broker(app: Celery, url: str) -> None:
    """Refuse a broker that lets nobody in, and a Redis that `server_check.require_broker` refuses.

    Raises:
        ConfigurationError: it is such a broker.
        OperationalError: it is away.
    """
    with app.connection_for_read() as connection:
        try:
            connection.ensure_connection(max_retries=0)
            info = _info(connection.default_channel)
        except OperationalError:
            raise
        except (*connection.connection_errors, *connection.channel_errors) as error:  # such as a refused login
            refused = f"The broker at {redact_url(url)} refuses the connection ({reason(error)})"
            raise ConfigurationError(refused) from error
    if info is not None:
        refuse_unsuitable(url, info)


def _info(channel: Any) -> dict[str, Any] | None:
    if not isinstance(channel, redis.Channel):
        return None
    with channel.conn_or_acquire() as client:
        info: dict[str, Any] = client.info()
        return info
