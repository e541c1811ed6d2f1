"""What the event loop does for the batched transport: each turn, at each answer, and every few seconds.

Where the loop stands still while tasks run, or ends before they do, a thread keeps what they hold: in the pools of
threads, gevent, eventlet and solo.
"""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from kombu.transport import redis as stock

from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger

if TYPE_CHECKING:
    from queue_manager.broker.transport import Channel

TURN = 1.0  # seconds

log = get_logger("QM/transport")


class Poller(stock.MultiChannelPoller):
    """Watches the connections of all channels; those of waiters, too."""

    renewing: Any = None
    """The timer that renews."""

    _next_turn = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._keeper: Thread | None = None
        self._is_closed = Event()

    def keep_by_thread(self, interval: float) -> None:
        """Send acknowledgements and, every `interval` seconds, renew what is held from a thread, until it is closed."""
        if self._keeper is None:
            if self.renewing is not None:
                self.renewing.cancel()
            self._keeper = Thread(target=self._keep, args=(interval,), name="unacked", daemon=True)
            self._keeper.start()

    def _keep(self, interval: float) -> None:
        renewed_at = time.monotonic()
        while not self._is_closed.wait(TURN):
            is_time = time.monotonic() - renewed_at >= interval
            for channel in list(self._channels):
                qos = channel._qos  # `qos` would make one, which is the main thread's to do
                if qos is None:
                    continue
                try:
                    qos.send_acks()
                    if is_time:
                        qos.renew()
                except Exception as error:
                    is_time = False
                    log.warning("Messages could not be kept; the next turn tries again", error=reason(error))
            if is_time:
                renewed_at = time.monotonic()

    def close(self) -> None:
        self._is_closed.set()
        super().close()

    def on_poll_start(self) -> None:
        for channel in list(self._channels):
            channel.qos.send_acks()
        super().on_poll_start()
        for channel in list(self._channels):
            channel.wait_for_messages(self)

    def listen(self, channel: Channel, client: Any, kind: str) -> None:
        """Have the event loop look at a client's connection, which is made if it is not there."""
        if not self._client_registered(channel, client, kind):
            self._register(channel, client, kind)

    def on_readable(self, fileno: int) -> Any:
        channel, kind = self._fd_to_chan.get(fileno, (None, ""))
        if kind == "BRPOP" and not channel._in_poll:  # nothing was asked: the server closes an idle connection
            return channel.client.connection.disconnect()
        if kind == "BRPOP" or kind.startswith("WAIT"):
            return channel.handlers[kind]()
        return super().on_readable(fileno)

    def _update_brpop_polling(self) -> None:
        """Read what was taken at once, although the prefetch count may have sunk: only what is delivered is renewed."""

    def get(self, callback: Any, timeout: float | None = None) -> None:
        """Deliver something, without an event loop: so do what its timers would."""
        if time.monotonic() >= self._next_turn:
            self._next_turn = time.monotonic() + TURN
            if self._keeper is None:
                self.renew()
            self.maybe_restore_messages()
        super().get(callback, timeout)

    def renew(self) -> None:
        """Keep what is held; and send what is done, when the loop has ended and a worker waits for its last tasks."""
        for channel in list(self._channels):
            try:
                channel.qos.send_acks()
                channel.qos.renew()
            except channel.connection_errors:
                log.debug("Messages could not be renewed; the next turn does")

    def maybe_check_brpop_health(self) -> None:
        super().maybe_check_brpop_health()
        for channel in list(self._channels):
            for waiter in channel.waiters.values():
                if channel.health_check_interval and waiter.is_overdue(channel.health_check_interval):
                    waiter.client.connection.disconnect()
