"""Settings, read from the environment and `.env`.

Guarantee: a wrong value raises `ConfigurationError`: one line with the name, the value (never a secret) and what it
must be. Reading the settings opens no connection.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from dotenv.parser import parse_stream
from pydantic import AliasChoices, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from queue_manager.core.errors import ConfigurationError
from queue_manager.core.redis_url import CLUSTER_SCHEME, REDIS_SCHEMES, TLS_FILES
from queue_manager.core.setting_types import (
    AMQP_SCHEMES,
    TEXT_RULE,
    ApiKeys,
    BrokerUrl,
    CollectionName,
    Days,
    FilePath,
    ItemUrl,
    ModuleNames,
    MongoUrl,
    PathPrefix,
    QueueKeyPrefix,
    QueueRedisUrl,
    RedisUrl,
    Secret,
    SentryDsn,
    SmtpUrl,
    SocketioAdapters,
    Text,
    TextList,
    TrueOrFalse,
    WebhookUrl,
)
from queue_manager.core.wording import did_you_mean

# An IPv6 address; or what is not a port, probably a password without its @.
_ADDRESS_OR_NO_PORT = re.compile(r"(?<![^,])(\[[\da-fA-F:.]+(?:%\w+)?\])|:(?!\d*(?:[/,]|$))[^/,]*")
_FIRST_NAME = re.compile(r"\s*(?:export\s+)?(\w+)")
SECRET_NAMES = ("_SECRET", "_KEYS", "_KEYS_FILE", "_DSN", "_WEBHOOK_URL", "_SMTP_URL")
"""How the names of settings end whose values are never shown."""
_MAX_SHOWN_LENGTH = 100  # characters of a wrong value in its error
MIN_ITEM_TIMEOUT = 20  # seconds below which operators are warned: a transaction waits 15 s for an election
_PUBLIC_OPTIONS = {
    *("replicaSet", "authSource", "directConnection", "tls", "ssl", "retryWrites"),
    *("w", "journal", "readPreference", "readConcernLevel", "tlsCAFile", "tlsCertificateKeyFile", "authMechanism"),
    *("db", "master_name", *TLS_FILES),
}


def redact_url(url: str) -> str:
    """Return `url` without credentials, and with the values of options redacted unless they are public."""
    scheme, is_url, rest = url.partition("://")
    if not is_url:
        return "***"  # it may start with a password
    credentials, at, place = rest.rpartition("@")  # the last one, because a password may contain an unquoted @
    address, has_options, query = place.partition("?")
    address = _ADDRESS_OR_NO_PORT.sub(lambda found: found[1] or ":***", address)
    options = [option.partition("=") for option in query.split("&")]
    shown = "&".join(name + equals + (value if name in _PUBLIC_OPTIONS else "***") for name, equals, value in options)
    return f"{scheme}://{'***' if credentials else ''}{at}{address}{has_options}{shown if has_options else ''}"


class Settings(BaseSettings):
    """The settings, by the lower-case names of their environment variables."""

    model_config = SettingsConfigDict(env_file=".env", extra="ignore", frozen=True, env_ignore_empty=True)

    mongo_db_url: MongoUrl = "mongodb://127.0.0.1:27017/queue_manager"
    """URL of MongoDB; the path names the database."""
    redis_url: RedisUrl = "redis://127.0.0.1:6379/0"
    """Leases, the beat's schedule and lock, statistics, the channel of Socket.IO; without `broker_url` the broker.

    redis://, rediss://, unix:// or sentinel://.
    """
    broker_url: BrokerUrl | None = None
    """Celery's broker: a URL like `redis_url`, or amqp:// or amqps://; unset: `redis_url`."""
    qm_broker: Annotated[Literal["batched", "stock"], Field(validate_default=False)] = "batched"
    """The transport for Redis: our own, in batches, or kombu's. RabbitMQ has kombu's."""
    qm_batching: TrueOrFalse = True
    """Whether items are executed and published in batches; off: one by one, as Celery does it."""
    app_env: Text = Field(default="production", validation_alias=AliasChoices("APP_ENV", "NODE_ENV"))

    qm_conversations: TrueOrFalse = False
    """Switches support snooze on."""
    qm_projects: TrueOrFalse = False
    """Switches review requests on."""
    qm_sites_fix_stale_thumbnails: TrueOrFalse = False
    """Switches the reset of stale thumbnails on."""
    qm_message_queue: TrueOrFalse = False
    """Switches the message queue on: its API, and the requeue of overdue messages."""
    qm_jobs: TrueOrFalse = False
    """Switches the job queues on."""
    qm_systems: ModuleNames = []
    """Modules that declare additional systems; their systems are switched on."""
    qm_dry_run: TextList = []
    """Names of systems whose scans count what is due and dispatch nothing."""

    qm_snooze_scan_seconds: Annotated[float, Field(ge=0.5, le=3600)] = 10
    """Seconds between two scans for ended snoozes."""
    qm_snooze_flag: TrueOrFalse = True
    """Whether `snooze_queue_in_progress` is set while a room is dispatched, for other programs that read it."""
    qm_lease_seconds: Annotated[float, Field(ge=2, le=3600)] = 60
    """Seconds that a lease lasts before a scan may take the item again."""
    qm_claim_batch: Annotated[int, Field(ge=1, le=10_000)] = 1_000
    """Items that a scan leases and publishes per batch, at most."""
    qm_ahead_limit: Annotated[int, Field(ge=0, le=10_000)] = 200
    """Items that one scan dispatches ahead of their due time; 0 disables it."""
    qm_max_queue: Annotated[int, Field(ge=1, le=10_000_000)] = 20_000
    """Messages in one item queue above which scans dispatch no more."""
    qm_item_timeout_seconds: Annotated[float, Field(ge=1, le=86_400)] = 120
    """Seconds after which a process that hangs in an item or a batch is replaced; does not apply to jobs.

    The process of a batch is replaced after one lease if that is sooner, but not before 30 s. An item may wait 15 s for
    an election of MongoDB.
    """
    qm_worker_concurrency: Annotated[int | None, Field(ge=1, le=1_000)] = None
    """Tasks that one worker executes at a time; default: one for each core, at least 2."""
    qm_shutdown_seconds: Annotated[float, Field(ge=0, le=86_400)] = 20
    """Seconds that tasks have to finish after SIGTERM before they are requeued; 0 means unlimited."""

    managed_subscriptions: TextList = []
    """Product types whose agencies get review requests; sites and listings never do."""
    subscriptions_collection: CollectionName = "store-subscription"
    pulses_collection: CollectionName = "projects.pulse"
    review_after_days: Days = 30
    """Days of active subscription after which an agency gets a review request."""
    review_window_days: Days = 30
    """Days between two requests, in addition to the buffer."""
    review_buffer_days: Days = 1

    thumbnail_stale_seconds: Annotated[float | None, Field(gt=0, le=31_536_000)] = None
    """Seconds after which a thumbnail build is stale; default: 2 h, in development 15 min."""
    thumbnail_build_task: Text | None = None
    """Celery task of another application that is called for each site that was reset."""

    qm_queue_redis_url: QueueRedisUrl | None = None
    """URL of the message queue's server, which may also be cluster://; default: `redis_url`."""
    queue_name: QueueKeyPrefix = "queue"
    """Prefix of all keys of the message queue; `{in braces}` for Redis Cluster."""
    max_priority_levels: Annotated[int, Field(ge=1, le=100)] = 10
    """Number of message priorities; 0 is the lowest."""
    ack_timeout_seconds: Annotated[float, Field(ge=0.1, le=604_800)] = 30
    """Default seconds in which a message must be acknowledged."""
    max_attempts: Annotated[int, Field(ge=1, le=10_000)] = 3
    """Default number of deliveries before a message is dead-lettered."""
    requeue_batch_size: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Overdue messages that one script call requeues."""
    overdue_check_interval_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 5_000
    """Milliseconds between two periodic sweeps; additional sweeps run at earlier deadlines."""
    queue_require_lock_token: TrueOrFalse = True
    """Whether ack, nack and touch require the lock token; switch it off for clients of an older service."""
    queue_shared: TrueOrFalse = True
    """Whether other programs, such as an older service, use the same streams; costs a little maintenance a minute."""
    queue_max_payload_bytes: Annotated[int, Field(ge=1, le=64 * 1024 * 1024)] = 1024 * 1024
    """Maximum bytes of a message's payload as JSON."""

    jobs_imports: ModuleNames = []
    """Modules that register jobs, imported by workers."""
    jobs_production_only: TrueOrFalse = False
    """Runs jobs only if `app_env` is set to `production`."""
    jobs_timer_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 5_000
    """Milliseconds between two dispatches of due jobs."""
    jobs_lease_seconds: Annotated[float, Field(ge=1, le=3_600)] = 30
    """Seconds without heartbeat after which a job is requeued."""
    jobs_timeout_seconds: Annotated[float, Field(ge=0, le=31_536_000)] = 0
    """Seconds that an attempt of a job may take, unless its function declares a `timeout`; 0 means unlimited."""
    jobs_grace_seconds: Annotated[float, Field(ge=0, le=3_600)] = 10
    """Seconds that a job has to stop, after its time limit or a cancellation, before its process is killed."""
    jobs_retention_days: Annotated[float, Field(ge=0, le=36_500)] = 0
    """Days after which successful and canceled jobs are deleted; 0 keeps them."""
    jobs_takeover_seconds: Annotated[int, Field(ge=6, le=600)] = 6
    """Seconds without heartbeat after which another beat becomes the leader."""

    socketio_adapter: SocketioAdapters = ["python"]
    """Adapters of the Socket.IO servers that receive events: python, redis, redis-streams."""
    socketio_channel: Text = "socketio"
    """Redis channel on which python-socketio's servers listen."""
    socketio_node_key: Text = "socket.io"
    """Prefix of the channels, and name of the stream, of Node servers: `key` and `streamName` of their adapters."""
    socketio_stream_max_length: Annotated[int, Field(ge=100, le=10_000_000)] = 10_000
    """Approximate number of entries to which the stream of Node servers is trimmed."""
    socketio_token_secret: Secret | None = None
    """Verifies the tokens of Socket.IO clients (HS256)."""
    qm_api_keys: ApiKeys = []
    """API keys of the web process; without keys it accepts only local requests."""
    qm_api_keys_file: FilePath | None = None
    """File with the API keys, read again when it changes."""
    qm_hooks: TrueOrFalse = False
    """Enables the manual triggers of the web process."""
    qm_web_prefix: PathPrefix | None = None
    """Path below which a proxy publishes the web process."""
    qm_web_port: Annotated[int, Field(ge=1, le=65_535)] = 6002
    """Port of the web process, unless its command gets `--port`."""
    qm_room_url: ItemUrl | None = None
    """URL of a room in the product, with `{id}`."""
    qm_audit_days: Annotated[float, Field(ge=1, le=3_650)] = 90
    """Days for which the audit keeps what people and programs changed; a change applies to new entries."""

    qm_log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    qm_log_format: Literal["console", "json"] = "console"

    qm_tracing: TrueOrFalse = False
    """Whether traces are exported with OpenTelemetry, as the variables `OTEL_*` say; needs the extra `otel`."""
    sentry_dsn: SentryDsn | None = None
    """Sentry project to which final failures are reported; needs the extra `sentry`."""

    qm_alert_webhook_url: WebhookUrl | None = None
    """URL to which the web process posts problems of health that last."""
    qm_alert_webhook_form: Literal["json", "slack"] = "json"
    """Form of these posts: the problems as JSON, or a text as Slack expects it."""
    qm_alert_mail_to: TextList = []
    """Addresses to which the web process mails problems of health that last."""
    qm_alert_mail_from: Text = "queue-manager@localhost"
    """Sender of these mails."""
    qm_alert_smtp_url: SmtpUrl | None = None
    """Server for these mails: smtp:// (a login on another host requires STARTTLS) or smtps://; unset: port 25 here."""
    qm_alert_after_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60
    """Seconds that a problem must last before it is sent."""
    qm_alert_repeat_minutes: Annotated[float, Field(ge=1, le=43_200)] = 240
    """Minutes after which a problem that still lasts is sent again."""

    @field_validator("qm_broker")
    @classmethod
    def _refuse_transport(cls, transport: str, info: ValidationInfo) -> str:
        """Refuse an explicit transport that cannot serve the broker. The default is valid with every broker."""
        url = info.data.get("broker_url") or info.data.get("redis_url") or ""
        if transport == "batched" and url.startswith(AMQP_SCHEMES):
            raise ValueError(f"stock, or unset, with BROKER_URL={redact_url(url)}: batches are for Redis only")
        # Kombu would show these passwords.
        if transport == "stock" and (url.startswith("unix:") or "sentinel_password" in url):
            raise ValueError("batched, or unset, with a unix:// broker, or one whose Sentinels have a password")
        return transport

    @field_validator("queue_name")
    @classmethod
    def _require_one_slot(cls, name: str, info: ValidationInfo) -> str:
        if (info.data.get("qm_queue_redis_url") or "").startswith(CLUSTER_SCHEME) and not name.startswith("{"):
            raise ValueError("a name in braces on a Redis Cluster, such as {queue}, so that all keys share a hash slot")
        return name

    @property
    def broker(self) -> str:
        """The URL of Celery's broker."""
        return self.broker_url or self.redis_url

    @property
    def broker_redis_url(self) -> str | None:
        """The URL of Celery's broker if that is a Redis, whichever transport is used."""
        return self.broker if self.broker.startswith(REDIS_SCHEMES) else None

    @property
    def web_prefix(self) -> str:
        """The prefix of the paths of the web process, empty by default."""
        return self.qm_web_prefix or ""

    @property
    def worker_concurrency(self) -> int:
        return self.qm_worker_concurrency or max(os.cpu_count() or 1, 2)

    @property
    def has_batched_broker(self) -> bool:
        return self.qm_broker == "batched" and self.broker_redis_url is not None

    @property
    def runs_jobs(self) -> bool:
        """Whether jobs are switched on and allowed in this environment."""
        return self.qm_jobs and self.allows_jobs

    @property
    def allows_jobs(self) -> bool:
        """Whether jobs may run in this environment. The default of APP_ENV does not count as production."""
        is_production = self.app_env == "production" and "app_env" in self.model_fields_set
        return is_production or not self.jobs_production_only

    @property
    def jobs_disabled_reason(self) -> str:
        """Reason why `allows_jobs` is false."""
        environment = f"APP_ENV={self.app_env!r}" if "app_env" in self.model_fields_set else "APP_ENV is not set"
        return f"JOBS_PRODUCTION_ONLY=true and {environment}: no jobs run here"

    @property
    def has_credentials(self) -> bool:
        """Whether the web process requires authentication. A file counts even if it has no keys."""
        return bool(self.qm_api_keys) or self.qm_api_keys_file is not None

    def warnings(self) -> list[str]:
        """Return warnings for operators: misspelt settings, a timeout that is too short, and jobs that may not run."""
        fields = [name.upper() for name in type(self).model_fields]
        given = {name for name in _environment() if name.startswith("QM_")}
        warnings = []
        for name in sorted(given - set(fields) - _READ_ELSEWHERE):
            warnings.append(f"{name} is not a setting{did_you_mean(name, fields)}")
        if (timeout := self.qm_item_timeout_seconds) < MIN_ITEM_TIMEOUT:
            warnings.append(
                f"QM_ITEM_TIMEOUT_SECONDS={timeout:g} should be at least {MIN_ITEM_TIMEOUT}: an item may wait 15 s for "
                "an election of MongoDB, and its process would be killed"
            )
        if self.qm_jobs and not self.runs_jobs:
            warnings.append(self.jobs_disabled_reason)
        return warnings


def _environment() -> dict[str, str]:
    """Return the variables of `.env` and of the environment, which takes precedence."""
    return {**{name: value or "" for name, value in dotenv_values(".env").items()}, **os.environ}


# Names with the prefix QM_ that are read elsewhere: paths of embedded servers, needed before the settings are read, and
# what `queue-manager start` sets for its processes.
_READ_ELSEWHERE = {"QM_MONGOD_BIN", "QM_REDIS_SERVER_BIN", "QM_PROCESS_NAME"}


@cache
def settings() -> Settings:
    """Return the settings of this process, read once.

    Raises:
        ConfigurationError: lists every invalid setting, one per line.
    """
    try:
        _refuse_unreadable_lines()
        return Settings()
    except ValidationError as error:
        raise ConfigurationError("\n".join(_explain(detail) for detail in error.errors())) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f".env: must be a readable file in UTF-8 ({type(error).__name__})") from None


def _refuse_unreadable_lines() -> None:
    """Refuse a line of `.env` about a setting that cannot be read; python-dotenv would leave it out."""
    if not os.path.isfile(".env"):
        return
    with open(".env", encoding="utf-8") as file:
        for line in parse_stream(file):
            name = _FIRST_NAME.match(line.original.string) if line.error else None
            if name is not None and name[1].lower() in Settings.model_fields:
                raise ConfigurationError(
                    f".env, line {line.original.line}: {name[1]} must be written as {name[1]}=value, and a value that "
                    "begins with a quote must end with it"
                )


def _explain(detail: Any) -> str:
    name = str(detail["loc"][0]).upper()
    accepted = _accepted(name, detail)
    if name.endswith(SECRET_NAMES):
        return f"{name}: must be {accepted}"
    value = str(detail["input"])
    if name.endswith("_URL") or "://" in value:  # such as BROKER_URL in QM_BROKER
        value = redact_url(value)
    shown = value if len(value) <= _MAX_SHOWN_LENGTH else f"{value[:_MAX_SHOWN_LENGTH]}…"
    return f"{name}={shown!r}: must be {accepted}"


def _accepted(name: str, detail: Any) -> str:
    """Return what the value must be; pydantic's messages omit the bounds and quote the value."""
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if detail["type"] == "literal_error":
        return str(detail["ctx"]["expected"]).replace("'", "")
    field = Settings.model_fields.get(name.lower())
    kind = field.annotation if field is not None else None
    if field is None or kind not in (int, int | None, float, float | None):
        return TEXT_RULE
    limits = {
        limit: getattr(one, limit) for one in field.metadata for limit in ("gt", "ge", "le") if hasattr(one, limit)
    }
    number = "a whole number" if kind in (int, int | None) else "a number"
    if "gt" in limits:
        return f"{number} above {limits['gt']} and up to {limits['le']}"
    return f"{number} from {limits['ge']} to {limits['le']}"
