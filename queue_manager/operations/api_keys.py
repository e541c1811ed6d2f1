"""The configured API keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from beat_schedule import systems
from queue_manager.core import api_keys
from queue_manager.core.api_keys import ApiKey
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import Settings

FILE_SETTING = "QM_API_KEYS_FILE"


def configured_keys(chosen: Settings) -> list[ApiKey]:
    """Return the API keys of the settings, also those that have expired.

    Raises:
        ConfigurationError: both settings are given, the file is unreadable or invalid, or a key is for an unknown
            system.
    """
    if chosen.qm_api_keys and chosen.qm_api_keys_file is not None:
        raise ConfigurationError(f"{FILE_SETTING}: must not be set together with QM_API_KEYS")
    if chosen.qm_api_keys_file is not None:
        return read_keys(chosen.qm_api_keys_file)
    _require_systems(chosen.qm_api_keys, "QM_API_KEYS")
    return chosen.qm_api_keys


def read_keys(file: Path) -> list[ApiKey]:
    """Return the API keys of a file. Raises `ConfigurationError`."""
    try:
        keys = api_keys.parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"{FILE_SETTING}={str(file)!r}: must be a readable file; it cannot be read ({error.strerror})"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{FILE_SETTING}={str(file)!r}: must be a file of JSON in UTF-8") from None
    except ValueError as error:
        raise ConfigurationError(f"{FILE_SETTING}={str(file)!r}: must be a file of {error}") from None
    _require_systems(keys, FILE_SETTING)
    return keys


def _require_systems(keys: Sequence[ApiKey], setting: str) -> None:
    """Raise `ConfigurationError` if a key is for a system that does not exist."""
    known = [system.name for system in systems()]
    for key in keys:
        for name in key.systems or ():
            if name not in known:
                accepted = ", ".join(known)
                raise ConfigurationError(f"{setting}: the key {key.name} names the system {name!r}; known: {accepted}")
