"""Who somebody is, and what they may."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from queue_manager.core.api_keys import ROLES, Role


@dataclass(frozen=True, kw_only=True)
class Who:
    """The holder of a key, or any user of this machine if no keys are configured."""

    name: str
    """The key's name, `loopback` without keys."""
    role: Role
    by: Literal["loopback", "key", "session"]
    digest: bytes = field(default=b"", repr=False)
    """Of the key, so that another key under its name is not taken for it."""
    session: str = field(default="", repr=False)
    """The id of the session, by which it is revoked."""
    until: datetime | None = None
    """When the key, or the session, ends."""

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    @property
    def may_act(self) -> bool:
        return self.may("operator")


LOOPBACK = Who(name="loopback", role="operator", by="loopback")
