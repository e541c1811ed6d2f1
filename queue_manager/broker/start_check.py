"""Start-up check of any broker, through kombu."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from kombu.transport import redis
from redis.exceptions import AuthenticationError

from queue_manager.core.errors import ConfigurationError, reason
from queue_manager.core.server_check import refuse_unsuitable
from queue_manager.core.settings import redact_url

BROKER_OUTAGES = (OperationalError,)


def require_broker(app: Celery, url: str) -> None:
    """Check that the broker accepts our login, and that a Redis cannot lose messages.

    Raises:
        ConfigurationError: the broker is not usable.
        OperationalError: the broker is unavailable.
    """
    with app.connection_for_read() as connection:
        try:
            connection.ensure_connection(max_retries=0)
            info = _redis_info(connection.default_channel)
        except OperationalError as error:
            if isinstance(error.__cause__, AuthenticationError):  # of Redis, which counts as a connection error
                raise _refused(url, error) from error
            raise
        except (*connection.connection_errors, *connection.channel_errors) as error:  # such as a refused login
            raise _refused(url, error) from error
    if info is not None:
        refuse_unsuitable(url, info)


def _refused(url: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"The broker at {redact_url(url)} refuses the connection ({reason(error)})")


def _redis_info(channel: Any) -> dict[str, Any] | None:
    """Return the INFO of a Redis; `None` for another broker."""
    if not isinstance(channel, redis.Channel):
        return None
    with channel.conn_or_acquire() as client:
        info: dict[str, Any] = client.info()
        return info
