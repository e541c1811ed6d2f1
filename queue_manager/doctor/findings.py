"""What a check yields: what is wrong, and what it could not examine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What is wrong, and what to do."""

    text: str
    action: str
    system: str | None = None
    """The system or component of a health problem."""
    rule: str | None = None
    """The id of the health rule, if it is a health problem."""


@dataclass(frozen=True)
class NotChecked:
    """Why a check, or a part of it, could not be made."""

    reason: str


Findings = Finding | NotChecked
