"""Start-up check of any broker: a Redis, or another one through kombu."""

from __future__ import annotations

from celery import Celery
from kombu.exceptions import OperationalError

from queue_manager.core.errors import ConfigurationError, reason
from queue_manager.core.redis_client import REDIS_OUTAGES
from queue_manager.core.redis_url import REDIS_SCHEMES
from queue_manager.core.server_check import require_server
from queue_manager.core.settings import redact_url

BROKER_OUTAGES = (OperationalError, *REDIS_OUTAGES)


def require_broker(app: Celery, url: str) -> None:
    """Check that the broker accepts our login, and that a Redis cannot lose messages.

    Raises:
        ConfigurationError: the broker is not usable.
        OperationalError, redis.ConnectionError, redis.TimeoutError: the broker is unavailable.
    """
    if url.startswith(REDIS_SCHEMES):
        return require_server(url)
    with app.connection_for_read() as connection:
        try:
            connection.ensure_connection(max_retries=0)
            connection.channel()
        except OperationalError:
            raise
        except (*connection.connection_errors, *connection.channel_errors) as error:  # such as a refused login
            text = f"The broker at {redact_url(url)} refuses the connection ({reason(error)})"
            raise ConfigurationError(text) from error
