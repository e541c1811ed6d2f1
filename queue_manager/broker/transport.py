"""The Redis transports of kombu with our channel: `redis://` and `rediss://`.

While a worker lives, it renews the messages that it holds every quarter of `visibility_timeout`. So the timeout can be
short, and the messages of a killed worker are redelivered soon after it. Acks are flushed once per turn of the event
loop; if a crash loses them, the messages are redelivered, which items tolerate.

With prefork the event loop does both, also during a warm shutdown. With threads, gevent, eventlet and solo the loop
blocks while tasks run, or ends before they do, so a thread does both.
"""

from __future__ import annotations

import ssl
import time
from threading import Event, Thread
from typing import Any

from kombu.transport import redis as stock

from queue_manager.broker.channel import Channel
from queue_manager.broker.empty_queues import FALLBACK_POLL_INTERVAL
from queue_manager.broker.errors import refusals_as_connection_errors
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger

UPKEEP_INTERVAL = 1.0  # seconds between two turns where no event loop does the work

log = get_logger("QM/transport")


class Poller(stock.MultiChannelPoller):
    """Polls the connections of all channels."""

    renewal_timer: Any = None
    """The timer of the event loop that renews."""
    polling_timer: Any = None
    """The timer of the event loop that polls lists."""

    _next_upkeep_at = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._thread: Thread | None = None
        self._is_closed = Event()

    def renew_in_thread(self, interval: float) -> None:
        """Flush acks, and renew messages every `interval` seconds, from a thread until the poller is closed."""
        if self._thread is None:
            if self.renewal_timer is not None:
                self.renewal_timer.cancel()
            self._thread = Thread(target=self._run_thread, args=(interval,), name="unacked", daemon=True)
            self._thread.start()

    def _run_thread(self, interval: float) -> None:
        renewed_at = time.monotonic()
        while not self._is_closed.wait(UPKEEP_INTERVAL):
            must_renew = time.monotonic() - renewed_at >= interval
            for channel in list(self._channels):
                unacked = channel._qos  # `qos` would create it, which only the main thread may do
                if unacked is None:
                    continue
                try:
                    unacked.flush_acks()
                    if must_renew:
                        unacked.renew()
                except Exception as error:
                    must_renew = False
                    log.warning("Messages could not be acknowledged or renewed; retrying", error=reason(error))
            if must_renew:
                renewed_at = time.monotonic()

    def close(self) -> None:
        self._is_closed.set()
        super().close()

    def poll_lists(self) -> None:
        """Request messages of channels where that is due."""
        for channel in list(self._channels):
            channel.poll_lists()
        self.on_poll_start()

    def on_poll_start(self) -> None:
        """Send what the turn of the event loop needs. Redis also refuses the pings before it if its disk fails."""
        with refusals_as_connection_errors():
            for channel in list(self._channels):
                channel.qos.flush_acks()
            super().on_poll_start()

    def request(self, channel: Channel) -> None:
        """Request a batch of messages now instead of in the next turn of the event loop."""
        with refusals_as_connection_errors():
            if channel.active_queues and channel.qos.can_consume():
                self._register_BRPOP(channel)

    def on_readable(self, fileno: int) -> Any:
        channel, key = self._fd_to_chan.get(fileno, (None, ""))
        if key == "BRPOP":
            return channel.handlers[key]() if channel._in_poll else channel.handle_notifications()
        return super().on_readable(fileno)

    def _update_brpop_polling(self) -> None:
        """Read each batch at once, even if the prefetch count has dropped: only delivered messages are renewed."""

    def get(self, callback: Any, timeout: float | None = None) -> None:
        """Wait for events, and do the work of the timers: this is called where there is no event loop."""
        if time.monotonic() >= self._next_upkeep_at:
            self._next_upkeep_at = time.monotonic() + UPKEEP_INTERVAL
            if self._thread is None:
                self.renew()
            self.maybe_restore_messages()
            self.poll_lists()
        super().get(callback, UPKEEP_INTERVAL if timeout is None else min(timeout, UPKEEP_INTERVAL))

    def renew(self) -> None:
        """Renew all messages. Flush acks too, because the loop may have ended while the last tasks finish."""
        for channel in list(self._channels):
            try:
                channel.qos.flush_acks()
                channel.qos.renew()
            except channel.connection_errors:
                log.debug("Messages could not be renewed; the next turn retries")


class Transport(stock.Transport):
    """`redis://`, in batches."""

    Channel = Channel
    has_event_loop = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self.has_event_loop = True
        super().register_with_event_loop(connection, loop)
        for timer in (self.cycle.renewal_timer, self.cycle.polling_timer):
            if timer is not None:
                timer.cancel()
        self.cycle.polling_timer = loop.call_repeatedly(FALLBACK_POLL_INTERVAL, self.cycle.poll_lists)
        self.cycle.renewal_timer = loop.call_repeatedly(self._renewal_interval, self.cycle.renew)

    def renew_in_thread(self) -> None:
        """Flush acks and renew messages from a thread: for a worker whose event loop blocks while tasks run."""
        self.cycle.renew_in_thread(self._renewal_interval)

    @property
    def _renewal_interval(self) -> float:
        options = self.client.transport_options
        timeout: float = options.get("visibility_timeout", Channel.visibility_timeout)
        return timeout / 4


class SecureTransport(Transport):
    """`rediss://`, in batches. Always TLS; the certificate is verified unless the settings say otherwise.

    kombu enables TLS by the scheme `rediss`, which a URL with a transport of its own does not have.
    """

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        if not isinstance(client.ssl, dict):
            client.ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
