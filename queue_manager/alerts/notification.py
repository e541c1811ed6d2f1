"""What is sent, and its form in JSON, in Slack and in a mail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any, Literal

from queue_manager.core.settings import settings
from queue_manager.explanation import many
from queue_manager.health_rules import Problem

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
