"""Alerts of real processes: a web process posts and mails a problem; the commands send a test and silence a problem."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from email.message import EmailMessage
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from dev.ports import LOOPBACK
from queue_manager.alerts import Notification, send_to_channels
from queue_manager.cli.completion import complete_alert_system
from queue_manager.core.background import in_thread
from queue_manager.health_rules import COMPONENTS
from tests.deployment.programs import replaced
from tests.documented import DOCS, block, options
from tests.e2e.commands import environment, queue_manager
from tests.e2e.receivers import receiving_mails, receiving_posts
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.servers.certificates import Certificates
from tests.web.web_process import web

pytestmark = pytest.mark.processes

SECRET_PATH = "/services/T0/s3cret"


def alerts(*arguments: str, **env: str) -> tuple[int, str]:
    """Return the exit code of `queue-manager alerts …` and what it prints."""
    run = queue_manager("alerts", *arguments, **env)
    return run.returncode, run.stdout + run.stderr


def test_a_problem_is_posted_and_mailed_unless_it_is_silenced(clean: Servers, tmp_path: Path) -> None:
    posts: list[dict[str, Any]] = []
    mails: list[EmailMessage] = []
    with (
        receiving_posts(lambda path, body: posts.append({"path": path, **json.loads(body)})) as http,
        receiving_mails(mails) as smtp,
    ):
        env = {
            "APP_ENV": "staging",
            "QM_CONVERSATIONS": "true",
            "QM_ALERT_WEBHOOK_URL": f"http://{LOOPBACK}:{http}{SECRET_PATH}",
            "QM_ALERT_MAIL_TO": "ops@example.com,dev@example.com",
            "QM_ALERT_SMTP_URL": f"smtp://{LOOPBACK}:{smtp}",
            "QM_ALERT_AFTER_SECONDS": "0",
        }
        assert alerts("silence", "support-snooze", "late-scan", "--reason", "a new deployment", **env)[0] == 0
        with web(tmp_path, **env) as process:
            (post,) = eventually(lambda: posts)
            (mail,) = eventually(lambda: mails)
            listed = alerts("list", **env)[1]
    sent = {(one["system"], one["rule"]) for one in post["problems"]}
    assert {("beat", "no-leader"), ("workers", "no-workers")} <= sent
    assert ("support-snooze", "late-scan") not in sent
    assert (post["path"], post["status"], post["environment"]) == (SECRET_PATH, "problem", "staging")
    assert (mail["To"], mail["Subject"]) == ("ops@example.com, dev@example.com", post["title"])
    assert "Start `celery -A tasks beat`." in mail.get_content()
    assert "a new deployment" in listed
    assert "no-leader" in listed
    assert "s3cret" not in process.log + listed


def test_a_terminated_process_does_not_wait_for_a_webhook(clean: Servers, tmp_path: Path) -> None:
    is_posted = Event()
    env = {"QM_ALERT_AFTER_SECONDS": "0"}
    with socket.create_server((LOOPBACK, 0)) as listener:
        listener.settimeout(60)

        def answer_slowly(is_over: Event) -> None:
            with listener.accept()[0] as connection, suppress(ConnectionError):
                is_posted.set()
                while not is_over.wait(1):
                    connection.sendall(b"H")

        with (
            in_thread(answer_slowly, name="webhook"),
            web(tmp_path, QM_ALERT_WEBHOOK_URL=f"http://{LOOPBACK}:{listener.getsockname()[1]}", **env) as process,
        ):
            assert is_posted.wait(60)
            process.child.end(grace=30)
            assert process.child.poll() != -signal.SIGKILL


def test_alerts_test_sends_to_each_channel_and_names_those_that_fail() -> None:
    posts: list[dict[str, Any]] = []

    def take(path: str, body: bytes) -> int:
        posts.append(json.loads(body))
        return 200 if path == "/works" else 500

    with receiving_posts(take) as port:
        url = f"http://{LOOPBACK}:{port}"
        slack = {"QM_ALERT_WEBHOOK_URL": f"{url}/works", "QM_ALERT_WEBHOOK_FORM": "slack"}
        assert alerts("test", **slack)[0] == 0
        assert posts[-1]["text"].splitlines()[1].startswith("• settings: This is a test of the alerts")
        code, said = alerts("test", QM_ALERT_WEBHOOK_URL=f"{url}/s3cret")
        assert (code, "webhook: HTTP Error 500" in said, "s3cret" in said) == (1, True, False)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirecting_webhook_counts_as_a_failed_notification(
    status: int, change_settings: Callable[..., None]
) -> None:
    with receiving_posts(lambda *_: status, location="/elsewhere") as port:
        change_settings(QM_ALERT_WEBHOOK_URL=f"http://{LOOPBACK}:{port}")
        error = send_to_channels(Notification("recovered", []))["webhook"]
    assert str(error).startswith(f"HTTP Error {status}: ")


@pytest.mark.parametrize(("host", "is_sent"), [("mail.example.com", False), (LOOPBACK, True)])
def test_an_smtp_password_is_sent_only_over_tls(
    host: str, is_sent: bool, monkeypatch: pytest.MonkeyPatch, change_settings: Callable[..., None]
) -> None:
    mails: list[EmailMessage] = []
    with receiving_mails(mails, user="user", password="password") as port:
        connect, address = socket.create_connection, (LOOPBACK, port)
        monkeypatch.setattr(socket, "create_connection", lambda _, *rest, **options: connect(address, *rest, **options))
        change_settings(QM_ALERT_MAIL_TO="ops@example.com", QM_ALERT_SMTP_URL=f"smtp://user:password@{host}")
        error = send_to_channels(Notification("recovered", []))["mail"]
    assert (error is None, len(mails)) == (is_sent, int(is_sent))
    assert is_sent or "mail.example.com does not offer STARTTLS: the password is not sent unencrypted" in str(error)


@pytest.mark.parametrize("is_trusted", [True, False])
@pytest.mark.parametrize(("scheme", "context"), [("smtp", "tls_context"), ("smtps", "ssl_context")])
def test_an_smtp_password_is_sent_to_another_host_that_has_a_trusted_certificate(
    scheme: str,
    context: str,
    is_trusted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change_settings: Callable[..., None],
) -> None:
    certificates = Certificates.made_in(tmp_path / "certificates")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates.path("server.pem"), certificates.path("server.key"))
    mails: list[EmailMessage] = []
    with receiving_mails(mails, user="user", password="password", **{context: tls}) as port:
        monkeypatch.setattr("queue_manager.alerts.is_loopback", lambda _: False)
        if is_trusted:
            monkeypatch.setenv("SSL_CERT_FILE", certificates.path("ca.pem"))
        url = f"{scheme}://user:password@{LOOPBACK}:{port}"
        change_settings(QM_ALERT_MAIL_TO="ops@example.com", QM_ALERT_SMTP_URL=url)
        error = send_to_channels(Notification("recovered", []))["mail"]
    assert len(mails) == is_trusted
    assert error is None if is_trusted else "certificate verify failed" in str(error)


def test_an_smtp_password_that_cannot_be_sent_does_not_stop_other_channels(
    change_settings: Callable[..., None],
) -> None:
    posts: list[bytes] = []
    with (
        receiving_posts(lambda _, body: posts.append(body)) as http,
        receiving_mails([], user="user", password="pässword") as smtp,
    ):
        change_settings(
            QM_ALERT_WEBHOOK_URL=f"http://{LOOPBACK}:{http}",
            QM_ALERT_MAIL_TO="ops@example.com",
            QM_ALERT_SMTP_URL=f"smtp://user:p%C3%A4ssword@{LOOPBACK}:{smtp}",
        )
        errors = send_to_channels(Notification("recovered", []))
    assert (errors["webhook"], len(posts)) == (None, 1)
    assert "the password has characters that cannot be sent" in str(errors["mail"])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("test",), 2, "no channel is configured: set QM_ALERT_WEBHOOK_URL or QM_ALERT_MAIL_TO"),
        (
            ("silence", "suport-snooze", "lag"),
            2,
            "There is no system or component 'suport-snooze' (did you mean support-snooze?); there are: support-",
        ),
        (("unsilence", "beat", "no-leader"), 1, "beat no-leader is not silenced"),
        (("list",), 0, "no active alerts, no silences"),
    ],
)
def test_invalid_alert_commands_are_refused_in_one_line(
    arguments: tuple[str, ...], code: int, said: str, clean: Servers
) -> None:
    answered, text = alerts(*arguments)
    assert (answered, said in text) == (code, True), text


def test_every_documented_component_can_be_silenced() -> None:
    page = (DOCS / "reference" / "health.md").read_text()
    listed = page.partition("to a component: ")[2].partition(". In JSON")[0]
    assert tuple(re.findall(r"`(\w+)`", listed)) == COMPONENTS
    assert complete_alert_system("s") == ["settings", "stale-thumbnails", "support-snooze"]


def test_the_documented_commands_use_the_documented_channels(clean: Servers, tmp_path: Path) -> None:
    settings, commands = (block(number, heading="Alerts", page=DOCS / "how-to" / "monitor.md") for number in range(2))
    posts: list[dict[str, Any]] = []
    mails: list[EmailMessage] = []
    with (
        receiving_posts(lambda _, body: posts.append(json.loads(body))) as http,
        receiving_mails(mails, user="user", password="password") as smtp,
    ):
        addresses = {
            "https://hooks.example.com/services/…": f"http://{LOOPBACK}:{http}/",
            "mail.example.com:587": f"{LOOPBACK}:{smtp}",
        }
        env = options(re.sub(r" +#.*", "", replaced(settings, addresses)))
        run = subprocess.run(
            ["bash", "-ec", commands],
            env=environment(**env, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", QM_CONVERSATIONS="true"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "This is a test of the alerts" in posts[0]["text"]
    assert mails[0]["To"] == "ops@example.com, dev@example.com"
    assert run.stdout.endswith("no active alerts, no silences\n")
