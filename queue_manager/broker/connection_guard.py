"""A Redis transport whose worker survives the loss of Redis while it holds unacknowledged messages.

Stock kombu 5.7 answers a lost connection by closing its channels, and a closing channel gives back what it
delivered. By then the connection is gone, the channel asks `None` for its host name, and the AttributeError
ends the worker: with one task running that acks late, or one countdown held in memory, a restart of Redis
stops every worker. Here a channel that lost its connection raises a connection error, which Celery handles.

Guarantee: the worker stays up, reconnects and takes new messages. What it held stays registered as unacked; `held` says
what becomes of it. The base of the batched transport, which is the one in use.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.transport import redis as stock
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from queue_manager.core import redis_client


class ConnectionLost(RedisConnectionError):
    """The channel's connection is closed for good; its successor is another channel."""


class BrokerRefuses(RedisConnectionError):
    """The server is there and does not do it: its memory is full, it became a replica, its disk fails."""


@contextmanager
def refusal_is_a_connection_error() -> Iterator[None]:
    """Let a worker connect again, and say why, where an error of another kind would end it."""
    try:
        yield
    except ResponseError as error:
        raise BrokerRefuses(f"Redis refuses: {error}") from error


class QoS(stock.QoS):
    """What a channel has delivered and not yet seen acknowledged."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Register a message that was just taken. A server whose memory is full refuses that and keeps nothing.

        Raises:
            BrokerRefuses: a connection error, after which the worker connects again instead of dying. The message is
                lost to the broker; what it was for is found by the next scan.
        """
        with refusal_is_a_connection_error():
            super().append(message, delivery_tag)


class Channel(stock.Channel):
    """A channel that lost its connection says so, instead of asking `None` for an attribute."""

    QoS = QoS
    connection_class = redis_client.Connection
    connection_class_ssl = redis_client.SecureConnection

    _commands: Any = None

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        # Every new pool asks here, so this one place covers ack, reject, restore and publish.
        if self.connection is None or self.connection.client is None:
            raise ConnectionLost("the connection of this channel was lost")
        params: dict[str, Any] = super()._connparams(asynchronous=asynchronous)
        return params

    def _create_client(self, asynchronous: bool = False) -> Any:
        """Return the client for commands, made once per pool: stock kombu makes one for each ack.

        The client holds no connection of its own, only the pool, which threads may share and which kombu
        replaces after a disconnect or a fork. The asynchronous kind owns a connection and is left alone.
        """
        if asynchronous:
            return super()._create_client(asynchronous=True)
        if self._commands is None or self._commands.connection_pool is not self.pool:
            self._commands = super()._create_client()
        return self._commands


class Transport(stock.Transport):
    """`redis://`, guarded."""

    Channel = Channel


class SecureTransport(Transport):
    """`rediss://`, guarded. Always TLS; the certificate is verified unless the settings say otherwise.

    kombu derives TLS from the scheme `rediss` alone, which it does not look at when a transport is chosen.
    """

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        if not isinstance(client.ssl, dict):
            client.ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
