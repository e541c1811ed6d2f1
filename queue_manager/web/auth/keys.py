"""API keys, from the setting or from a file that is read again when it changes.

Guarantee: a change of the file takes effect within a second. A file that is unreadable or invalid is logged and leaves
the keys as they are: a partial write must not lock users out.
"""

from __future__ import annotations

import time
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from queue_manager.core.api_keys import ApiKey
from queue_manager.core.clock import local_now
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.log import get_logger
from queue_manager.core.settings import Settings
from queue_manager.operations.api_keys import configured_keys, read_keys
from queue_manager.web.auth.principal import Principal

FILE_CHECK_INTERVAL = 1.0  # seconds

log = get_logger("QM/access")


def digest_of(key: str) -> bytes:
    """Return the digest by which keys are compared: digests have one length, so that comparing takes constant time."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


class KeyRing:
    """All keys. Raises `ConfigurationError` if both settings are given, or the file is unreadable or invalid."""

    def __init__(self, chosen: Settings) -> None:
        self._file = chosen.qm_api_keys_file
        self._checked_at = time.monotonic()
        self._stamp = _stamp(self._file) if self._file is not None else None
        self._keys = _holders(configured_keys(chosen))

    def find(self, key: str) -> Principal | None:
        """Return the holder of the key with this secret, unless it has expired."""
        digest, found = digest_of(key), None
        for holder in self._current():  # all of them, so that the duration reveals nothing
            if compare_digest(holder.key_digest, digest):
                found = holder
        return found if found is not None and not found.is_expired(local_now()) else None

    def named(self, name: str) -> Principal | None:
        """Return the holder of the key with this name, unless it has expired."""
        found = next((holder for holder in self._current() if holder.name == name), None)
        return found if found is not None and not found.is_expired(local_now()) else None

    def _current(self) -> list[Principal]:
        if self._file is not None and time.monotonic() - self._checked_at >= FILE_CHECK_INTERVAL:
            self._checked_at = time.monotonic()
            self._reload(self._file)
        return self._keys

    def _reload(self, file: Path) -> None:
        stamp = _stamp(file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = _holders(read_keys(file))
        except ConfigurationError as error:
            log.error(f"The keys stay as they were: {error}")
        else:
            log.info("Keys read again", keys=len(self._keys))


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino


def _holders(keys: list[ApiKey]) -> list[Principal]:
    return [Principal.of(key, digest=digest_of(key.key.get_secret_value())) for key in keys]
