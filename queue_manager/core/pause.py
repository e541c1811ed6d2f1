"""A pause that an operator made: since when, by whom and why."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from queue_manager.core.clock import to_iso

MAX_REASON_LENGTH = 500  # characters
COMMAND_LINE = "command line"


class Pause(Struct, frozen=True, kw_only=True):
    """A pause; what is unknown is `None`, as after a pause by an older release."""

    at: datetime | None = None
    by: str | None = None
    reason: str | None = None

    def __str__(self) -> str:
        """Return `since … by …: reason`, as far as it is known."""
        since = "" if self.at is None else f" since {to_iso(self.at)}"
        by = "" if self.by is None else f" by {self.by}"
        return f"{since}{by}{f': {self.reason}' if self.reason else ''}".strip()
