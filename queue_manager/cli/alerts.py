"""`queue-manager alerts`: active alerts, a test, and silences."""

from __future__ import annotations

from typing import Annotated

import typer

from beat_schedule import systems
from models import alert
from models.alert import Key
from models.database import server_now
from queue_manager.alerts import Alert, Notification, has_channels, send_to_channels
from queue_manager.cli.changes import audited, checked_reason, user_name
from queue_manager.cli.completion import complete_alert_system
from queue_manager.cli.errors import fail
from queue_manager.cli.terminal import print_line, print_rows
from queue_manager.core.clock import minutes, to_iso
from queue_manager.core.settings import settings
from queue_manager.core.wording import did_you_mean
from queue_manager.health_rules import COMPONENTS, Rule

alerts_cli = typer.Typer(
    help="List active alerts, send a test alert, silence a problem.\n\n"
    "The web process sends the problems of `queue-manager health` that last longer than QM_ALERT_AFTER_SECONDS: to "
    "QM_ALERT_WEBHOOK_URL, and to QM_ALERT_MAIL_TO by mail.",
    no_args_is_help=True,
)

SystemArgument = Annotated[
    str,
    typer.Argument(
        help="The system or component, as health names it.", metavar="SYSTEM", autocompletion=complete_alert_system
    ),
]
RuleArgument = Annotated[Rule, typer.Argument(help="The rule, as health names it, such as `lag`.", metavar="RULE")]


@alerts_cli.command("list")
def list_alerts() -> None:
    """List active alerts and silences.

    An alert is active while a problem that was sent lasts.
    """
    sent, silences = alert.sent(), list(alert.silences(server_now()))
    listed = [(*key, "sent", text) for key, text in sorted(sent.items())]
    listed += [(*one.key, f"silenced until {to_iso(one.until)}", f"{one.reason} (by {one.by})") for one in silences]
    rows = [dict(zip(("system", "rule", "state", "text"), row, strict=True)) for row in listed]
    print_rows(rows, nothing="no active alerts, no silences")


@alerts_cli.command()
def test() -> None:
    """Send a test message to every configured channel. Exit code 1 if one rejects it."""
    if not has_channels(settings()):
        fail("no channel is configured: set QM_ALERT_WEBHOOK_URL or QM_ALERT_MAIL_TO", code=2)
    example = Alert("settings", "test", "This is a test of the alerts", "Nothing needs to be done.")
    errors = send_to_channels(Notification("problem", [example]))
    if failed := [f"{channel}: {error}" for channel, error in errors.items() if error is not None]:
        fail("\n".join(failed), code=1)
    print_line("sent")


@alerts_cli.command()
def silence(
    system: SystemArgument,
    rule: RuleArgument,
    for_minutes: Annotated[float, typer.Option("--minutes", min=1, max=43_200, help="How long.")] = 60,
    reason: Annotated[str, typer.Option(help="Reason, shown to other operators.")] = "",
) -> None:
    """Send nothing about a problem for a while.

    Neither its start nor its end is sent. `queue-manager health` still shows it.

    Example: `queue-manager alerts silence support-snooze lag --minutes 120 --reason "import is running"`
    """
    why = checked_reason(reason) or ""
    key, names = Key(system, rule.id), [*(one.name for one in systems()), *COMPONENTS]
    if system not in names:
        near = did_you_mean(system, names)
        fail(f"There is no system or component {system!r}{near}; there are: {', '.join(names)}", code=2)
    until = server_now() + minutes(for_minutes)
    detail = "; ".join(filter(None, [f"until {to_iso(until)}", why]))
    with audited("silence", system=system, filter={"rule": rule.id}, detail=detail):
        alert.silence(key, until=until, by=user_name(), reason=why)
    print_line(f"{system}  {rule}  silenced until {to_iso(until)}")


@alerts_cli.command()
def unsilence(system: SystemArgument, rule: RuleArgument) -> None:
    """End a silence. Exit code 1 if there is none.

    Example: `queue-manager alerts unsilence support-snooze lag`
    """
    key = Key(system, rule.id)
    with audited("unsilence", system=system, filter={"rule": rule.id}) as action:
        was_silenced = alert.unsilence(key)
        action.count = int(was_silenced)
    if not was_silenced:
        fail(f"{system} {rule} is not silenced", code=1)
    print_line(f"{system}  {rule}  unsilenced")
