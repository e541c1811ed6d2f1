"""Rounds of a web process in which problems are looked for and sent.

Sent are those that last, again while they last, and once when they have ended.

Guarantee: of all web processes one sends, as long as MongoDB answers. While it does not, each process sends for itself,
because an outage must not hide itself. A problem that no channel took is sent again in the next round, and one whose
process was killed while it sent it by another process after a minute.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from models import alert
from models.alert import Key
from models.database import server_now
from queue_manager.alerts.notification import Alert, Notification, has_channels, send_to_channels
from queue_manager.core.background import CallThread, in_background
from queue_manager.core.clock import seconds
from queue_manager.core.errors import Unavailable
from queue_manager.core.log import get_logger
from queue_manager.core.settings import Settings
from queue_manager.health import all_problems, read
from queue_manager.health_rules import Problem
from queue_manager.server_calls import mongodb

ROUND_INTERVAL = seconds(15)
MISSED_UNTIL_ENDED = 2  # rounds in which it was not seen: a problem that flickers has not ended

log = get_logger("QM/alerts")


@asynccontextmanager
async def alerting(chosen: Settings) -> AsyncIterator[None]:
    """Look for problems within the block, if a channel is configured."""
    if not has_channels(chosen):
        yield
        return
    watch = Watch(
        after=seconds(chosen.qm_alert_after_seconds),
        repeat=seconds(60 * chosen.qm_alert_repeat_minutes),
        send=_send,
    )
    async with in_background(_go_on(watch)):
        yield


def _send(notification: Notification) -> bool:
    """Return whether a channel took the notification."""
    errors = send_to_channels(notification)
    for channel, error in errors.items():
        if error is None:
            log.info("An alert was sent", channel=channel, title=notification.title)
        else:
            log.error("An alert could not be sent", channel=channel, title=notification.title, error=error)
    return None in errors.values()


async def _go_on(watch: Watch) -> None:
    while True:
        try:
            await _round(watch)
        except Exception as error:  # alerts must not end with one wrong round
            log.error("Problems could not be looked for", error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(ROUND_INTERVAL.total_seconds())


async def _round(watch: Watch) -> None:
    found = await read()
    is_complete = not any(isinstance(one, Problem) for one in (found.redis, found.mongodb, found.broker))
    unread = {name for name, stats in found.stats.items() if isinstance(stats, Problem)}
    evaluate = partial(watch.evaluate, all_problems(found), at=time.monotonic(), is_complete=is_complete, unread=unread)
    await CallThread("alerts").run(evaluate)  # a daemon: a webhook that hangs does not delay the end of the process


# The problems that this process knows


@dataclass
class _Known:
    """A problem that this process saw, or that another one sent."""

    text: str
    first_at: float
    """By this machine's monotonic clock, in seconds; so is `sent_at`."""
    sent_at: float | None = None
    is_sent_elsewhere: bool = False
    """Whether another process sends it. It may be killed before a channel took it, so this one asks in each round."""
    is_sent_alone: bool = False
    """Whether this process sent it without a record, because MongoDB was unavailable."""
    missed: int = 0


@dataclass
class Watch:
    """Compares the problems of each round with those of the rounds before."""

    after: timedelta
    """How long a problem must last before it is sent."""
    repeat: timedelta
    """How long after that it is sent again."""
    send: Callable[[Notification], bool]
    """Returns whether a channel took the notification."""
    _known: dict[Key, _Known] = field(default_factory=dict)
    _silenced: set[Key] = field(default_factory=set)

    def evaluate(self, problems: Iterable[Problem], *, at: float, is_complete: bool, unread: Set[str]) -> None:
        """Evaluate the problems of one round: send what begins, repeats or has ended.

        Args:
            at: the time by this machine's monotonic clock, in seconds.
            is_complete: all servers answered, so a problem that is not in `problems` does not exist.
            unread: the systems whose statistics could not be read, so that their problems cannot be said to have ended.
        """
        current = {Key(one.system, one.rule.id): one for one in problems}
        self._read_silences()
        self._remember({key: one.text for key, one in current.items()}, at, is_complete=is_complete, unread=unread)
        if started := [key for key in current if self._is_to_be_sent(key, at)]:
            if self.send(Notification("problem", [Alert.of(current[key]) for key in started])):
                _confirm(started)
            else:
                self._take_back(started)
        if ended := self._ended():
            self.send(Notification("recovered", [Alert(*key, text) for key, text in ended.items()]))

    def _read_silences(self) -> None:
        with suppress(Unavailable), mongodb():  # then those of the round before still hold
            self._silenced = {one.key for one in alert.silences(server_now())}

    def _remember(self, current: dict[Key, str], at: float, *, is_complete: bool, unread: Set[str]) -> None:
        for key, text in {**_sent(), **current}.items():
            self._known.setdefault(key, _Known(text, first_at=at))
        for key, known in self._known.items():
            if key in current:
                known.text, known.missed = current[key], 0
            elif is_complete and key.system not in unread:
                known.missed += 1

    def _is_to_be_sent(self, key: Key, at: float) -> bool:
        known = self._known[key]
        lasts = at - known.first_at >= self.after.total_seconds()
        was_sent = known.sent_at is not None and at - known.sent_at < self.repeat.total_seconds()
        if not lasts or (was_sent and not known.is_sent_elsewhere) or key in self._silenced:
            return False
        try:
            with mongodb():
                may_send = alert.may_send(key, known.text, repeat=self.repeat, now=server_now(), is_recorded=was_sent)
            known.is_sent_alone = False
        except Unavailable:
            if was_sent:
                return False
            may_send = known.is_sent_alone = True
        if may_send or not was_sent:
            known.sent_at, known.is_sent_elsewhere = at, not may_send
        return may_send

    def _take_back(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._known[key].sent_at = None
            with suppress(Unavailable), mongodb():
                alert.end(key)

    def _ended(self) -> dict[Key, str]:
        """Forget the problems that have ended; return the texts of those whose end this process sends."""
        gone = {key: known for key, known in self._known.items() if known.missed >= MISSED_UNTIL_ENDED}
        for key in gone:
            del self._known[key]
        return {key: one.text for key, one in gone.items() if _end(key, one) and key not in self._silenced}


def _sent() -> dict[Key, str]:
    """Return what was sent and has not ended, also by a process that is gone."""
    with suppress(Unavailable), mongodb():
        return alert.sent()
    return {}


def _confirm(keys: Iterable[Key]) -> None:
    with suppress(Unavailable), mongodb():
        alert.confirm_sent(keys, server_now())


def _end(key: Key, known: _Known) -> bool:
    """Return whether this process has to send the end of the problem."""
    with suppress(Unavailable), mongodb():
        return alert.end(key) or known.is_sent_alone
    return known.is_sent_alone
