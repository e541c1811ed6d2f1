"""Which problems are sent: those that last, again while they last, and once when they have ended.

Guarantee: of all web processes one sends, as long as MongoDB answers. While it does not, each process sends for itself,
because an outage must not hide itself. A problem that no channel took is sent again in the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from models import alert
from models.alert import Key
from models.database import server_now
from queue_manager.alerts.notification import Alert, Notification
from queue_manager.core.errors import Unavailable
from queue_manager.health_rules import Problem
from queue_manager.server_calls import mongodb

MISSED_UNTIL_ENDED = 2  # rounds in which it was not seen: a problem that flickers has not ended


@dataclass
class _Known:
    """A problem that this process saw, or that another one sent."""

    text: str
    first_at: float
    """By this machine's monotonic clock, in seconds; so is `sent_at`."""
    sent_at: float | None = None
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

    def evaluate(self, problems: Iterable[Problem], *, at: float, is_complete: bool) -> None:
        """Evaluate the problems of one round: send what begins, repeats or has ended.

        Args:
            at: the time by this machine's monotonic clock, in seconds.
            is_complete: all servers answered, so a problem that is not in `problems` does not exist.
        """
        current = {Key(one.system, one.rule.id): one for one in problems}
        self._read_silences()
        self._remember({key: one.text for key, one in current.items()}, at, is_complete=is_complete)
        started = [key for key in current if self._is_to_be_sent(key, at)]
        if started and not self.send(Notification("problem", [Alert.of(current[key]) for key in started])):
            self._take_back(started)
        if ended := self._ended():
            self.send(Notification("recovered", [Alert(*key, text) for key, text in ended.items()]))

    def _read_silences(self) -> None:
        with suppress(Unavailable), mongodb():  # then those of the round before still hold
            self._silenced = {one.key for one in alert.silences(server_now())}

    def _remember(self, current: dict[Key, str], at: float, *, is_complete: bool) -> None:
        for key, text in {**_sent(), **current}.items():
            self._known.setdefault(key, _Known(text, first_at=at))
        for key, known in self._known.items():
            if key in current:
                known.text, known.missed = current[key], 0
            elif is_complete:
                known.missed += 1

    def _is_to_be_sent(self, key: Key, at: float) -> bool:
        known = self._known[key]
        lasts = at - known.first_at >= self.after.total_seconds()
        was_sent = known.sent_at is not None and at - known.sent_at < self.repeat.total_seconds()
        if not lasts or was_sent or key in self._silenced:
            return False
        known.sent_at, known.is_sent_alone = at, False
        try:
            with mongodb():
                return alert.may_send(key, known.text, repeat=self.repeat, now=server_now())
        except Unavailable:
            known.is_sent_alone = True
            return True

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


def _end(key: Key, known: _Known) -> bool:
    """Return whether this process has to send the end of the problem."""
    with suppress(Unavailable), mongodb():
        return alert.end(key) or known.is_sent_alone
    return known.is_sent_alone
