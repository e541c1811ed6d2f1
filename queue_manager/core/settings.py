"""Every setting, read from the environment and `.env`: one class, one place, typed at the edge.

Guarantee: a wrong value raises `ConfigurationError` with the name, the value (secrets masked) and what is
accepted. Reading the settings opens no connection.
"""

from __future__ import annotations

import difflib
import os
import re
from functools import cache
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from queue_manager.core.errors import ConfigurationError

_PASSWORD = re.compile(r"(://[^:/@\s]*):\S*@")  # greedy: a password may hold any character, also an unquoted @


def masked(url: str) -> str:
    """Return `url` fit for a log line: its password replaced by `***`."""
    return _PASSWORD.sub(r"\1:***@", url)


def _flag(value: Any) -> bool:
    # Only the exact word switches a system on; anything unclear is off, and `Settings.remarks` says so.
    return value is True or (isinstance(value, str) and value.strip() == "true")


def _mongo_url(url: str) -> str:
    if not re.match(r"mongodb(\+srv)?://[^/]+/[^/?]+", url):
        raise ValueError("a mongodb:// URL whose path names the database, such as mongodb://db:27017/product")
    return url


def _redis_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or not re.fullmatch(r"/?\d*", parts.path):
        raise ValueError("a redis:// or rediss:// URL whose path is a database number, such as redis://cache:6379/0")
    return url


Flag = Annotated[bool, BeforeValidator(_flag)]
_SYSTEM = "switches a system on"
System = Annotated[Flag, _SYSTEM]


class Settings(BaseSettings):
    """The settings by the names that the environment uses, in lower case."""

    model_config = SettingsConfigDict(env_file=".env", extra="ignore", frozen=True, env_ignore_empty=True)

    mongo_db_url: Annotated[str, AfterValidator(_mongo_url)] = "mongodb://127.0.0.1:27017/queue_manager"
    """Where the record is kept; the path names the database."""
    redis_url: Annotated[str, AfterValidator(_redis_url)] = "redis://127.0.0.1:6379/0"
    """The broker, the beat's schedule and lock, and the channel of Socket.IO."""
    app_env: str = Field(default="production", validation_alias=AliasChoices("APP_ENV", "NODE_ENV"))

    qm_conversations: System = False
    """Switches support snooze on."""
    qm_projects: System = False
    """Switches review requests on."""
    qm_sites_fix_stale_thumbnails: System = False
    """Switches the reset of stale thumbnails on."""

    qm_snooze_scan_seconds: Annotated[float, Field(ge=0.5, le=3600)] = 10
    """Seconds between two scans for ended snoozes."""
    qm_lease_seconds: Annotated[float, Field(ge=0.5, le=3600)] = 60
    """Seconds that a claim lasts before a scan may take the item again."""
    qm_claim_batch: Annotated[int, Field(ge=1, le=10_000)] = 500
    """Items that a scan claims and publishes at a time."""
    qm_ahead_limit: Annotated[int, Field(ge=0, le=10_000)] = 200
    """Items not due yet that one scan sends with their exact time; 0 switches it off."""
    qm_max_queue: Annotated[int, Field(ge=1, le=10_000_000)] = 20_000
    """Messages that may wait in one item queue before scans stop claiming more."""
    qm_worker_concurrency: Annotated[int, Field(ge=1, le=1_000)] = 4
    """Items that one worker process runs at a time."""

    managed_subscriptions: list[str] = []
    """Product types whose agencies are asked for a review; sites and listings never are."""
    subscriptions_collection: str = "store-subscription"
    pulses_collection: str = "projects.pulse"
    review_after_days: Annotated[float, Field(ge=0)] = 30
    """Days of active subscription after which an agency is asked."""
    review_window_days: Annotated[float, Field(ge=0)] = 30
    """Days after a request before the next one, to which the buffer is added."""
    review_buffer_days: Annotated[float, Field(ge=0)] = 1

    thumbnail_stale_seconds: Annotated[float, Field(gt=0)] | None = None
    """Seconds after which a thumbnail build counts as hung; unset: 2 h, 15 min in development."""
    thumbnail_build_task: str | None = None
    """Name of another application's Celery task that is sent each site that was reset."""

    socketio_channel: str = "socketio"
    """Redis channel on which python-socketio's servers listen."""

    qm_log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    qm_log_format: Literal["console", "json"] = "console"

    def remarks(self) -> list[str]:
        """Return what an operator should know of the environment: unclear flags, misspelt names, nothing on."""
        fields = {name.upper(): field for name, field in type(self).model_fields.items()}
        given = {name: value for name, value in _environment().items() if name.startswith("QM_")}
        remarks = [
            f"{name}={value!r} is neither true nor false: it counts as false"
            for name, value in given.items()
            if name in fields and fields[name].annotation is bool and value.strip() not in ("true", "false", "")
        ]
        for name in sorted(set(given) - set(fields) - _READ_ELSEWHERE):
            near = difflib.get_close_matches(name, fields, n=1)
            remarks.append(f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else ""))
        systems = [name for name, field in fields.items() if _SYSTEM in field.metadata]
        if not any(getattr(self, name.lower()) for name in systems):
            remarks.append(f"no system is switched on, so no scan will run: set {' or '.join(systems)} to true")
        return remarks


def _environment() -> dict[str, str]:
    """Return what the settings were read from: the file, and the environment, which wins."""
    return {**{name: value or "" for name, value in dotenv_values(".env").items()}, **os.environ}


# Names that begin with QM_ and belong to the embedded servers, which must be found before settings are read.
_READ_ELSEWHERE = {"QM_MONGOD_BIN", "QM_REDIS_SERVER_BIN"}


@cache
def settings() -> Settings:
    """Return the settings of this process, read once.

    Raises:
        ConfigurationError: lists every wrong setting, one a line.
    """
    try:
        return Settings()
    except ValidationError as error:
        raise ConfigurationError("\n".join(_explain(detail) for detail in error.errors())) from None


def _explain(detail: Any) -> str:
    name = str(detail["loc"][0]).upper()
    accepted = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return f"{name}={masked(str(detail['input']))!r}: accepted is {accepted}"
