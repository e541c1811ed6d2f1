"""The principal that sends a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from queue_manager.core.api_keys import ROLES, ApiKey, Role
from queue_manager.pauses import LOCAL_USER


@dataclass(frozen=True, kw_only=True)
class Principal:
    """The holder of a key, or any user of this machine if no keys are configured."""

    name: str
    """The key's name; `loopback` without keys."""
    role: Role
    by: Literal["loopback", "key", "session"]
    key_digest: bytes = field(default=b"", repr=False)
    """Tells the key from a later one with the same name."""
    session: str = field(default="", repr=False)
    """The id by which the session is revoked."""
    expires_at: datetime | None = None
    """When the key or the session ends."""
    systems: tuple[str, ...] | None = None
    """The names of the only systems that the key is for; `None`: all."""

    @classmethod
    def of(cls, key: ApiKey, *, digest: bytes) -> Principal:
        """Return the holder of a key."""
        return cls(
            name=key.name,
            role=key.role,
            by="key",
            key_digest=digest,
            expires_at=key.expires_at,
            systems=key.systems,
        )

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def has_role(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def has_system(self, name: str | None) -> bool:
        """Return True if the key is for this system; with `None`, if it is for all."""
        return self.systems is None or name in self.systems

    @property
    def may_act(self) -> bool:
        return self.has_role("operator")


LOOPBACK = Principal(name=LOCAL_USER, role="operator", by="loopback")
