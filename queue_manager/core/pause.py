"""A pause that an operator made: since when, by whom and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, with_config

from queue_manager.core.clock import to_iso
from queue_manager.core.json_types import ALWAYS_PRESENT, Moment

MAX_REASON_LENGTH = 500  # characters
COMMAND_LINE = "command line"
LOCAL_USER = "loopback"
"""The user name that is stored for changes through a web process without keys, which listens on loopback only."""


@with_config(ALWAYS_PRESENT)
@dataclass(frozen=True, kw_only=True)
class PauseState:
    """A pause that an operator made; what is unknown is null."""

    at: Moment | None = None
    by: Annotated[str | None, Field(description="Who paused it: the name of the key, or `command line`.")] = None
    reason: str | None = None

    def __str__(self) -> str:
        """Return `since … by …: reason`, as far as it is known."""
        since = "" if self.at is None else f" since {to_iso(self.at)}"
        by = "" if self.by is None else f" by {person(self.by)}"
        return f"{since}{by}{f': {self.reason}' if self.reason else ''}".strip()


def person(name: str) -> str:
    """Return what texts for people call the one with this name, who paused or changed something."""
    return "someone on this machine" if name == LOCAL_USER else name
