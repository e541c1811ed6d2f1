"""Sending a notification to the channels that the settings name: a webhook, and mail.

Guarantee: each channel is waited for at most `CHANNEL_TIMEOUT`, and one that fails does not keep it from the
other. No log line has the URL's path, its query or a password.
"""

from __future__ import annotations

import json
import smtplib
import ssl
from collections.abc import Callable, Iterator
from http.client import HTTPException
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from queue_manager.alerts.notification import Notification
from queue_manager.core.errors import reason
from queue_manager.core.settings import Settings, settings

CHANNEL_TIMEOUT = 10.0  # seconds
OWN_MAIL_SERVER = "smtp://127.0.0.1:25"


def are_configured(chosen: Settings) -> bool:
    return chosen.qm_alert_webhook_url is not None or bool(chosen.qm_alert_mail_to)


def send(notification: Notification) -> dict[str, str | None]:
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
    except (OSError, HTTPException, smtplib.SMTPException) as error:
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
    with urlopen(request, timeout=CHANNEL_TIMEOUT):  # raises for a status of 400 or more
        pass


def _mail(notification: Notification) -> None:
    chosen = settings()
    server_url = chosen.qm_alert_smtp_url
    url = urlsplit(OWN_MAIL_SERVER if server_url is None else server_url.get_secret_value())
    with _connected(url.scheme, url.hostname or "localhost", url.port) as server:
        if url.username:
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
