"""Alerts: problems of health that last, sent to a webhook and by mail.

Web processes look for problems in rounds. A problem that lasts is sent, again while it lasts, and once when it has
ended.

Guarantee: of all web processes one sends, as long as MongoDB answers. While it does not, each process sends for itself,
because an outage must not hide itself. A problem or an end that no channel took is sent again in the next round; if the
process is killed while it sends it, another process sends it after a minute.

Each channel is waited for at most `CHANNEL_TIMEOUT`, and one that fails does not keep the notification from the other.
No log line has the URL's path, its query or a password. A password leaves this machine encrypted only.
"""

from __future__ import annotations

import asyncio
import html
import json
import smtplib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from email.message import EmailMessage
from functools import partial
from typing import Any, Literal
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from models import alert
from models.alert import Key
from models.database import server_now
from queue_manager.core.background import CallThread, in_background
from queue_manager.core.clock import seconds
from queue_manager.core.errors import Unavailable, reason
from queue_manager.core.log import get_logger
from queue_manager.core.loopback import is_loopback
from queue_manager.core.settings import Settings, settings
from queue_manager.core.wording import many
from queue_manager.health.problems import Outcomes, outcomes
from queue_manager.health.readings import read
from queue_manager.health_rules import Problem, Rule, Severity, by_severity
from queue_manager.server_calls import mongodb

ROUND_INTERVAL = seconds(15)
MISSED_UNTIL_ENDED = 2  # rounds in which it was not seen: a problem that flickers has not ended
CHANNEL_TIMEOUT = 10.0  # seconds
OWN_MAIL_SERVER = "smtp://127.0.0.1:25"

Status = Literal["problem", "recovered"]

log = get_logger("QM/alerts")


@dataclass(frozen=True)
class Alert:
    """A problem of health, as `queue-manager health` shows it."""

    system: str
    rule: str
    text: str
    action: str | None = None
    """What to do; `None` if it has ended."""

    @classmethod
    def of(cls, problem: Problem) -> Alert:
        return cls(problem.system, problem.rule.id, problem.text, problem.action)

    @property
    def severity(self) -> Severity | None:
        """The severity of the rule; `None` for a test, or for a rule that only another release has."""
        return next((rule.severity for rule in Rule if rule == self.rule), None)

    @property
    def line(self) -> str:
        where = f"{self.system} ({self.severity})" if self.severity else self.system
        return f"{where}: {self.text}" + (f". {self.action}" if self.action else "")


@dataclass(frozen=True)
class Notification:
    """Problems that have started or still last, or problems that have ended."""

    status: Status
    alerts: Sequence[Alert]

    @property
    def title(self) -> str:
        """One line, such as `[production] 2 problems: beat (no-leader), support-snooze (lag)`."""
        names = ", ".join(f"{one.system} ({one.rule})" for one in self.alerts)
        word = "Recovered" if self.status == "recovered" else many(len(self.alerts), "problem")
        return f"[{settings().app_env}] {word}: {names}"

    def as_json(self) -> dict[str, Any]:
        """Return the body of a generic webhook; `docs/how-to/monitor.md` describes it."""
        names = ("system", "rule", "severity", "text", "action")
        problems = [{name: getattr(one, name) for name in names} for one in self.alerts]
        return {"status": self.status, "environment": settings().app_env, "title": self.title, "problems": problems}

    def as_slack(self) -> dict[str, Any]:
        """Return the body of an incoming webhook of Slack, which Mattermost and Discord (`/slack`) also accept."""
        lines = [f"*{self.title}*", *(f"• {one.line}" for one in self.alerts)]
        return {"text": html.escape("\n".join(lines), quote=False)}  # not read as markup, such as `<!channel>`

    def as_mail(self, sender: str, recipients: Sequence[str]) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = self.title, sender, ", ".join(recipients)
        mail.set_content("\n\n".join(one.line for one in self.alerts) + "\n")
        return mail


# The channels


def has_channels(chosen: Settings) -> bool:
    return any(_channels(chosen))


def send_to_channels(notification: Notification) -> dict[str, str | None]:
    """Send to every channel; return the errors by channel, `None` for one that took the notification."""
    return {channel: _error_of(act, notification) for channel, act in _channels(settings())}


def _channels(chosen: Settings) -> Iterator[tuple[str, Callable[[Notification], None]]]:
    if chosen.qm_alert_webhook_url is not None:
        yield "webhook", _post
    if chosen.qm_alert_mail_to:
        yield "mail", _mail


def _error_of(act: Callable[[Notification], None], notification: Notification) -> str | None:
    try:
        act(notification)
    except UnicodeError:  # its text has a character of the password
        return "a name or the password has characters that cannot be sent"
    except Exception as error:  # of the network, of the server, and of what a library cannot encode
        return reason(error)
    return None


def _post(notification: Notification) -> None:
    chosen = settings()
    assert chosen.qm_alert_webhook_url is not None
    body = notification.as_slack() if chosen.qm_alert_webhook_form == "slack" else notification.as_json()
    request = Request(
        chosen.qm_alert_webhook_url.get_secret_value(),
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "queue-manager"},
    )
    with build_opener(_NoRedirects).open(request, timeout=CHANNEL_TIMEOUT):  # raises for any status but 2xx
        pass


class _NoRedirects(HTTPRedirectHandler):
    """Makes a redirect an error: after most of them, urllib would send a GET without the notification."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _mail(notification: Notification) -> None:
    chosen = settings()
    server_url = chosen.qm_alert_smtp_url
    url = urlsplit(OWN_MAIL_SERVER if server_url is None else server_url.get_secret_value())
    host = url.hostname or "localhost"
    with _connected(url.scheme, host, url.port) as server:
        if url.username:
            # Somebody between us and the server can remove STARTTLS from what it offers.
            if not isinstance(server.sock, ssl.SSLSocket) and not is_loopback(host):
                raise smtplib.SMTPNotSupportedError(
                    f"{host} does not offer STARTTLS: the password is not sent unencrypted; use smtps://, or an "
                    "smtp:// URL without a user"
                )
            server.login(unquote(url.username), unquote(url.password or ""))
        server.send_message(notification.as_mail(chosen.qm_alert_mail_from, chosen.qm_alert_mail_to))


def _connected(scheme: str, host: str, port: int | None) -> smtplib.SMTP:
    """Connect, encrypted if the server can do that."""
    if scheme == "smtps":
        return smtplib.SMTP_SSL(host, port or 465, timeout=CHANNEL_TIMEOUT, context=ssl.create_default_context())
    server = smtplib.SMTP(host, port or 25, timeout=CHANNEL_TIMEOUT)
    server.ehlo()
    if server.has_extn("starttls"):
        server.starttls(context=ssl.create_default_context())
        server.ehlo()
    return server


# The rounds


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
            log.error("The health problems could not be read", error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(ROUND_INTERVAL.total_seconds())


async def _round(watch: Watch) -> None:
    evaluate = partial(watch.evaluate, outcomes(await read()), at=time.monotonic())
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
    """Whether it was sent and has no record, because MongoDB was unavailable: this process sends its end."""
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

    def evaluate(self, found: Outcomes, *, at: float) -> None:
        """Evaluate the outcomes of one round: send what begins, repeats or has ended.

        A problem ends only if its rule was judged. Systems and rules that this process does not have are not judged.

        Args:
            at: the time by this machine's monotonic clock, in seconds.
        """
        current = {key: problem for key, problem in found.items() if problem is not None}
        self._read_silences()
        self._remember(found, at)
        if started := [key for key in current if self._is_to_be_sent(key, at)]:
            alerts = [*map(Alert.of, by_severity(current[key] for key in started))]
            self._record(started, is_sent=self.send(Notification("problem", alerts)))
        if ended := self._ended():
            to_send = [Alert(*key, one.text) for key, one in ended.items() if key not in self._silenced]
            self._record_ends(ended, are_sent=not to_send or self.send(Notification("recovered", to_send)))

    def _read_silences(self) -> None:
        with suppress(Unavailable), mongodb():  # then those of the round before still hold
            self._silenced = {one.key for one in alert.silences(server_now())}

    def _remember(self, found: Outcomes, at: float) -> None:
        with suppress(Unavailable), mongodb():  # also what was sent by a process that is gone
            for key, text in alert.sent().items():
                self._known.setdefault(key, _Known(text, first_at=at))
        for key, problem in found.items():
            if problem is not None:
                known = self._known.setdefault(key, _Known(problem.text, first_at=at))
                known.text, known.missed = problem.text, 0
            elif key in self._known:
                self._known[key].missed += 1

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

    def _record(self, keys: Collection[Key], *, is_sent: bool) -> None:
        """Record that problems were sent. The next round sends again what no channel took."""
        if not is_sent:
            for key in keys:
                self._known[key].sent_at = None
        with suppress(Unavailable), mongodb():
            if is_sent:
                alert.confirm_sent(keys, server_now())
            else:
                alert.release(keys)

    def _ended(self) -> dict[Key, _Known]:
        """Forget the problems that have ended; return those whose end this process sends."""
        gone = {key: known for key, known in self._known.items() if known.missed >= MISSED_UNTIL_ENDED}
        for key in gone:
            del self._known[key]
        return {key: one for key, one in gone.items() if _may_send_end(key, one)}

    def _record_ends(self, ended: Mapping[Key, _Known], *, are_sent: bool) -> None:
        """Record that ends were sent. Otherwise the next round sends them, or keeps the problems if they are back."""
        if not are_sent:
            self._known |= ended
        with suppress(Unavailable), mongodb():
            if are_sent:
                alert.delete(ended)
            else:
                alert.release_ends(ended)


def _may_send_end(key: Key, known: _Known) -> bool:
    with suppress(Unavailable), mongodb():
        return alert.may_send_end(key, server_now()) or known.is_sent_alone
    return known.is_sent_alone
