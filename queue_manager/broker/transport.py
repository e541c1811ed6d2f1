"""The Redis transport of kombu with our channel.

While a worker lives, it renews the messages that it holds every quarter of `visibility_timeout`. So the timeout can be
short, and the messages of a killed worker are redelivered soon after it. Acks are flushed once per turn of the event
loop; if a crash loses them, the messages are redelivered, which items tolerate.

A thread of the worker renews messages and also flushes acks, because the event loop may wait for a task, stand still
during a soft shutdown, or end before the last tasks do. The thread of a prefork worker stops renewing when the event
loop hangs, so that other workers get the messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import Event, Thread
from typing import Any

from kombu.asynchronous import set_event_loop
from kombu.transport import redis as stock

from queue_manager.broker.channel import Channel
from queue_manager.broker.errors import refusals_as_connection_errors
from queue_manager.broker.queue_lists import FALLBACK_POLL_INTERVAL
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger

UPKEEP_INTERVAL = 1.0  # seconds between two turns of the thread, or of a program that waits for messages
MAX_TIMERS = 10_000  # per turn of the event loop; with kombu's 10, many tasks with one ETA would delay other timers

log = get_logger("QM/transport")


class Poller(stock.MultiChannelPoller):
    """Polls the connections of all channels."""

    leave_loop: Callable[[], object] = staticmethod(lambda: None)
    """Removes kombu's callbacks from the event loop, which kombu leaves there when the connection is lost."""

    _next_upkeep_at = _polled_at = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._thread: Thread | None = None
        self._is_closed = Event()

    def renew_in_thread(self, interval: float, *, max_pause: float) -> None:
        """Flush acks, and renew messages every `interval` seconds, from a thread until the poller is closed.

        They are not renewed while the last call of `poll_lists`, by the event loop, is over `max_pause` seconds ago.
        """
        if self._thread is None:
            self._polled_at = time.monotonic()
            self._thread = Thread(target=self._run_thread, args=(interval, max_pause), name="unacked", daemon=True)
            self._thread.start()

    def _run_thread(self, interval: float, max_pause: float) -> None:
        renewed_at = time.monotonic()
        while not self._is_closed.wait(UPKEEP_INTERVAL):
            now = time.monotonic()
            must_renew = now - renewed_at >= interval and now - self._polled_at <= max_pause
            if self._keep_messages(must_renew=must_renew) and must_renew:
                renewed_at = time.monotonic()

    def _keep_messages(self, *, must_renew: bool) -> bool:
        """Flush the acks of all channels, and renew their messages; return False if some must be tried again."""
        is_done = True
        for channel in list(self._channels):
            unacked = channel._qos  # `qos` would create it, which only the main thread may do
            if unacked is None:
                continue
            try:
                unacked.flush_acks()
                if must_renew:
                    unacked.renew()
            except Exception as error:
                is_done = False
                log.warning("Messages could not be acknowledged or renewed; retrying", error=reason(error))
        return is_done

    def close(self) -> None:
        self._is_closed.set()
        self.leave_loop()
        super().close()

    def poll_lists(self) -> None:
        """Request messages for the channels whose poll interval has passed."""
        self._polled_at = time.monotonic()
        for channel in list(self._channels):
            channel.empty_queues.poll()
        self.on_poll_start()

    def on_poll_start(self) -> None:
        """Flush acks and request messages. If its disk fails, Redis also refuses the pings that precede them."""
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
        """Wait for events without an event loop, and do the work of its timer and of the thread."""
        if time.monotonic() >= self._next_upkeep_at:
            self._next_upkeep_at = time.monotonic() + UPKEEP_INTERVAL
            if self._thread is None:
                self._keep_messages(must_renew=True)
            self.maybe_restore_messages()
            self.poll_lists()
        super().get(callback, UPKEEP_INTERVAL if timeout is None else min(timeout, UPKEEP_INTERVAL))


class Transport(stock.Transport):
    """Batched transport for a Redis server, over TCP, TLS or a Unix socket."""

    Channel = Channel
    has_event_loop = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self.has_event_loop = True
        loop.fire_timers = partial(type(loop).fire_timers, loop, max_timers=MAX_TIMERS)
        set_event_loop(loop)  # kombu forgets it with a lost connection, and a warm shutdown would then not run it
        of_others = frozenset(loop.on_tick)
        super().register_with_event_loop(connection, loop)
        self.cycle.leave_loop = partial(loop.on_tick.difference_update, loop.on_tick - of_others)
        loop.call_repeatedly(FALLBACK_POLL_INTERVAL, self.cycle.poll_lists)
