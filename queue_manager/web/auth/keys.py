"""The keys as they are now: of the setting, or of a file that is read again when it changes.

Guarantee: a change of the file counts within a second. A file that cannot be read, or has a mistake, changes nothing
and is said in the log: half of it being written must not lock everybody out.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from queue_manager.core import api_keys
from queue_manager.core.api_keys import ApiKey
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.log import get_logger
from queue_manager.core.settings import Settings

LOOK_AGAIN_AFTER = 1.0  # seconds
SETTING = "QM_API_KEYS_FILE"

log = get_logger("QM/access")


def digest_of(key: str) -> bytes:
    """Return what keys are compared by: of one length, so that comparing takes one time."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


class Keys:
    """All keys. Raises `ConfigurationError`: both settings are given, or the file is not as it should be."""

    def __init__(self, chosen: Settings) -> None:
        if chosen.qm_api_keys and chosen.qm_api_keys_file is not None:
            raise ConfigurationError(f"{SETTING}: must not be set together with QM_API_KEYS")
        self._file = chosen.qm_api_keys_file
        self._looked_at = time.monotonic()
        self._stamp = _stamp(self._file) if self._file is not None else None
        self._keys = _digested(_read(self._file) if self._file is not None else chosen.qm_api_keys)

    def of(self, key: str) -> tuple[ApiKey, bytes] | None:
        """Return the key that was shown and its digest, `None` for one that is unknown or over."""
        shown, found = digest_of(key), None
        for digest, known in self._current():  # all of them: how long it takes says nothing
            if compare_digest(digest, shown):
                found = known
        return (found, shown) if found is not None and not found.is_expired(now()) else None

    def named(self, name: str) -> tuple[ApiKey, bytes] | None:
        """Return the key of this name and its digest, unless it is over."""
        for digest, known in self._current():
            if known.name == name and not known.is_expired(now()):
                return known, digest
        return None

    def _current(self) -> list[tuple[bytes, ApiKey]]:
        if self._file is not None and time.monotonic() - self._looked_at >= LOOK_AGAIN_AFTER:
            self._looked_at = time.monotonic()
            self._look_again(self._file)
        return self._keys

    def _look_again(self, file: Path) -> None:
        stamp = _stamp(file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = _digested(_read(file))
        except ConfigurationError as error:
            log.error(f"The keys stay as they were: {error}")
        else:
            log.info("Keys read again", keys=len(self._keys))


def now() -> datetime:
    """Return this machine's time: expiry is also looked at while no database answers."""
    return datetime.now(UTC)


def _read(file: Path) -> list[ApiKey]:
    try:
        return api_keys.parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"{SETTING}={str(file)!r}: must be a readable file; it cannot be read ({error.strerror})"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{SETTING}={str(file)!r}: must be a file of JSON in UTF-8") from None
    except ValueError as error:
        raise ConfigurationError(f"{SETTING}={str(file)!r}: must be a file of {error}") from None


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino


def _digested(keys: list[ApiKey]) -> list[tuple[bytes, ApiKey]]:
    return [(digest_of(key.key.get_secret_value()), key) for key in keys]
