"""A notification: its form in JSON, in Slack and in a mail, and its way to the channels that the settings name.

Guarantee: each channel, a webhook and mail, is waited for at most `CHANNEL_TIMEOUT`, and one that fails does not keep
the notification from the other. No log line has the URL's path, its query or a password. A password leaves this machine
encrypted only.
"""

from __future__ import annotations

import json
import smtplib
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any, Literal
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from queue_manager.core.errors import reason
from queue_manager.core.loopback import is_loopback
from queue_manager.core.settings import Settings, settings
from queue_manager.core.wording import many
from queue_manager.health_rules import Problem

CHANNEL_TIMEOUT = 10.0  # seconds
OWN_MAIL_SERVER = "smtp://127.0.0.1:25"

Status = Literal["problem", "recovered"]


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
    def line(self) -> str:
        return f"{self.system}: {self.text}" + (f". {self.action}" if self.action else "")


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
        problems = [
            {"system": one.system, "rule": one.rule, "text": one.text, "action": one.action} for one in self.alerts
        ]
        return {"status": self.status, "environment": settings().app_env, "title": self.title, "problems": problems}

    def as_slack(self) -> dict[str, Any]:
        """Return the body of an incoming webhook of Slack, which Mattermost and Discord (`/slack`) also accept."""
        lines = [f"*{_escaped(self.title)}*", *(f"• {_escaped(one.line)}" for one in self.alerts)]
        return {"text": "\n".join(lines)}

    def as_mail(self, sender: str, recipients: Sequence[str]) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = self.title, sender, ", ".join(recipients)
        mail.set_content("\n\n".join(one.line for one in self.alerts) + "\n")
        return mail


def _escaped(text: str) -> str:
    """Return the text without what Slack would read as markup, such as `<!channel>`."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# The channels


def has_channels(chosen: Settings) -> bool:
    return chosen.qm_alert_webhook_url is not None or bool(chosen.qm_alert_mail_to)


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
