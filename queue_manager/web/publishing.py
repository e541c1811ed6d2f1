"""Sending tasks while somebody waits for an HTTP answer: bounded, and with the error that servers have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kombu import Connection
from kombu.exceptions import OperationalError

from queue_manager.broker.options import timeouts
from queue_manager.core.errors import reason
from queue_manager.core.settings import redact_url, settings
from queue_manager.web.server_calls import REDIS_PATIENCE, Unavailable
from tasks import app


@contextmanager
def broker() -> Iterator[Connection]:
    """Give a connection of its own, without waiting for a broker that is away.

    Raises:
        Unavailable: what was sent within was not, or the reply was lost.
    """
    url = settings().broker
    with app.connection_for_write(transport_options=timeouts(url, REDIS_PATIENCE)) as connection:
        try:
            connection.ensure_connection(max_retries=0)
            yield connection
        except (OperationalError, *connection.connection_errors, *connection.channel_errors) as error:
            raise Unavailable(f"The broker at {redact_url(url)} takes no messages ({reason(error)})") from error
