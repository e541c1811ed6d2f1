"""Types of settings: how a value is parsed, and what it must be.

A rule raises `ValueError` with what the value must be; `settings` turns that into a `ConfigurationError`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri as parse_mongo_uri

from queue_manager.core import api_keys
from queue_manager.core.api_keys import ApiKey
from queue_manager.core.redis_url import CLUSTER_SCHEME, REDIS_SCHEMES, parse_redis_url, require_file

AMQP_SCHEMES = ("amqp", "amqps")
"""Schemes of brokers that only kombu's own transports serve."""
TEXT_RULE = "text in UTF-8 without control characters"
SOCKETIO_ADAPTERS = {"python", "redis", "redis-streams"}
MIN_SECRET_LENGTH = 32  # characters, the strength of an HS256 signature
_PATH_PREFIX = re.compile(r"(/[\w-][\w.-]*)+/?", re.ASCII)
_COLLECTION = re.compile(r"[A-Za-z0-9_-]([A-Za-z0-9_.-]{0,118}[A-Za-z0-9_-])?")
_SENTRY_DSN = re.compile(r"https?://[^/@\s]+@[^/@\s]+(/[\w.-]+)*/\d+")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}|\{[A-Za-z0-9_.-]{1,64}\}")
# Options of MONGO_DB_URL in lower case, with the values under which acknowledged writes are durable and readable.
_STRONG_OPTIONS = {
    "w": ("majority",),
    "journal": ("true",),
    "j": ("true",),
    "readpreference": ("primary",),
    "readconcernlevel": ("majority",),  # transactions refuse linearizable
}

_FILE_OPTIONS = ("tlscafile", "tlscertificatekeyfile", "tlscrlfile")


def _true_or_false(value: Any) -> bool:
    """Return the flag. An unclear value is an error: it must not switch anything off in silence."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def _text_list(value: Any) -> list[str]:
    """Parse a list of texts from JSON or from a comma-separated text."""
    accepted = 'strings separated by commas, such as a,b, or a JSON list of strings, such as ["a", "b"]'
    names = value
    if isinstance(value, str):
        try:
            names = json.loads(value) if value.lstrip().startswith(("[", "{", '"')) else value.split(",")
        except (ValueError, RecursionError):
            raise ValueError(accepted) from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(accepted)
    names = [name.strip() for name in names]
    if not all(name and name.isprintable() for name in names):
        raise ValueError(f"{accepted}; none may be empty or have control characters")
    return names


def _module_names(value: Any) -> list[str]:
    accepted = "names of Python modules, separated by commas or as a JSON list, such as billing.jobs"
    names = _list_of(value, accepted)
    if not all(part.isidentifier() for name in names for part in name.split(".")):
        raise ValueError(accepted)
    return names


def _list_of(value: Any, accepted: str) -> list[str]:
    """Parse a list of texts. Raises `ValueError` with `accepted`."""
    try:
        return _text_list(value)
    except ValueError:
        raise ValueError(accepted) from None


def _socketio_adapters(value: Any) -> list[str]:
    accepted = "one or more of python, redis and redis-streams, separated by commas or as a JSON list"
    names = _list_of(value, accepted)
    if not names or not set(names) <= SOCKETIO_ADAPTERS:
        raise ValueError(accepted)
    return list(dict.fromkeys(names))  # a repeated name would send every event twice


def _text(value: str) -> str:
    if not value.isprintable():
        raise ValueError(TEXT_RULE)
    return value


def _collection_name(name: str) -> str:
    if not _COLLECTION.fullmatch(name) or name.startswith("system."):
        raise ValueError("a name of a MongoDB collection: 1 to 120 letters, digits, _ - or dots between them")
    return name


def _queue_key_prefix(name: str) -> str:
    if not _QUEUE_NAME.fullmatch(name):
        raise ValueError("1 to 64 letters, digits, _ . or -, for Redis Cluster in {braces}")
    if re.search(r"_p\d+\}?$", name):
        raise ValueError("a name that does not end in _p and a number, like the streams of priorities")
    return name


def _path_prefix(prefix: str) -> str:
    if not _PATH_PREFIX.fullmatch(prefix):
        raise ValueError("a path of letters, digits, _ . or - that begins with a slash, such as /queue-manager")
    return prefix.rstrip("/")


def _file_path(path: Path) -> Path:
    if str(path).lstrip().startswith(("[", "{")):
        raise ValueError("the path of a file; the keys themselves belong in QM_API_KEYS")
    return path


def _mongo_url(url: str) -> str:
    accepted = "a mongodb+srv:// or mongodb:// URL whose path names the database, such as mongodb://db:27017/product"
    _check_options(url)
    database = _database_of(url)
    base, _, options = url.partition("?")
    if database is None and "@" not in options and _database_of(base):  # an @ is of a password with a question mark
        wrong = [one.partition("=")[0] for one in re.split("[&;]", options) if _database_of(f"{base}?{one}") is None]
        unlike = f", unlike {', '.join(wrong)}" if wrong else ""
        raise ValueError(f"a URL with options that MongoDB's driver accepts{unlike}")
    if database is None:
        raise ValueError(f"{accepted}; special characters of a password are written as %40 and the like")
    if not database:
        raise ValueError(accepted)
    return url


def _database_of(url: str) -> str | None:
    """Return the database that the driver reads in a URL, empty if there is none; `None` if the URL is not readable."""
    try:
        if url.startswith("mongodb+srv://"):
            return urlsplit(url).path.strip("/")  # the driver would look up its servers, so only its form is checked
        return parse_mongo_uri(url)["database"] or ""
    except (PyMongoError, ValueError):
        return None


def _check_options(url: str) -> None:
    """Refuse options under which a failover loses acknowledged writes, or reads are stale; and unreadable files."""
    # Names of options are case-insensitive, and MongoDB's drivers also separate them by semicolons.
    options = parse_qsl(url.partition("?")[2].replace(";", "&"))
    for name, value in options:
        strong = _STRONG_OPTIONS.get(name.lower())
        if strong is not None and value.lower() not in strong:
            raise ValueError(f"{name}={strong[0]}, or the URL without {name}: no other value keeps the guarantees")
        if name.lower() in _FILE_OPTIONS:
            require_file(name, value)


def _redis_url(url: str) -> str:
    if url.startswith(f"{CLUSTER_SCHEME}:"):
        raise ValueError(
            "a redis://, rediss://, unix:// or sentinel:// URL: only the message queue can be on a Redis Cluster "
            "(QM_QUEUE_REDIS_URL)"
        )
    return _queue_redis_url(url)


def _queue_redis_url(url: str) -> str:
    parse_redis_url(url)
    return url


def _broker_url(url: str) -> str:
    scheme = url.partition("://")[0]
    if scheme in (*REDIS_SCHEMES, CLUSTER_SCHEME):
        return _redis_url(url)
    try:
        parts = urlsplit(url)
        is_single = ";" not in url  # kombu would read the URLs of several servers
        is_readable = bool(parts.hostname) and parts.port != 0 and is_single and not parts.query and not parts.fragment
    except ValueError:
        is_readable = False
    if scheme not in AMQP_SCHEMES or not is_readable:
        raise ValueError(
            "a redis://, rediss://, unix:// or sentinel:// URL, or an amqp:// or amqps:// URL without options; special "
            "characters of a password are written as %40 and the like"
        )
    return url


def _sentry_dsn(url: str) -> str:
    if not _SENTRY_DSN.fullmatch(url):
        raise ValueError("the DSN of a Sentry project, such as https://KEY@HOST/NUMBER")
    return url


def _item_url(value: str) -> str:
    if not re.match(r"https?://[^/\s]", value) or "{id}" not in value:
        raise ValueError("a URL with {id}, such as https://example.com/rooms/{id}")
    return value


def _webhook_url(url: SecretStr) -> SecretStr:
    text = url.get_secret_value()
    if not _is_url(url, ("http", "https")) or " " in text or "@" in urlsplit(text).netloc:
        # urllib would send neither, and quote the password or the path in its error.
        raise ValueError("an http:// or https:// URL without spaces, and without a user and password")
    return url


def _smtp_url(url: SecretStr) -> SecretStr:
    if not _is_url(url, ("smtp", "smtps")):
        raise ValueError("an smtp:// or smtps:// URL, such as smtp://user:password@mail.example.com:587")
    return url


def _is_url(url: SecretStr, schemes: tuple[str, ...]) -> bool:
    text = url.get_secret_value()
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0 and text.isprintable()
    except ValueError:
        return False


def _long_secret(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < MIN_SECRET_LENGTH:
        raise ValueError(f"a secret of at least {MIN_SECRET_LENGTH} characters")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_long_secret)]
ApiKeys = Annotated[list[ApiKey], NoDecode, BeforeValidator(api_keys.parse)]
TrueOrFalse = Annotated[bool, BeforeValidator(_true_or_false)]
TextList = Annotated[list[str], NoDecode, BeforeValidator(_text_list)]
ModuleNames = Annotated[list[str], NoDecode, BeforeValidator(_module_names)]
SocketioAdapters = Annotated[list[str], NoDecode, BeforeValidator(_socketio_adapters)]
Text = Annotated[str, AfterValidator(_text)]
PathPrefix = Annotated[str, AfterValidator(_path_prefix)]
FilePath = Annotated[Path, AfterValidator(_file_path)]
CollectionName = Annotated[str, AfterValidator(_collection_name)]
QueueKeyPrefix = Annotated[str, AfterValidator(_queue_key_prefix)]
MongoUrl = Annotated[str, AfterValidator(_text), AfterValidator(_mongo_url)]
RedisUrl = Annotated[str, AfterValidator(_text), AfterValidator(_redis_url)]
QueueRedisUrl = Annotated[str, AfterValidator(_text), AfterValidator(_queue_redis_url)]
BrokerUrl = Annotated[str, AfterValidator(_text), AfterValidator(_broker_url)]
SentryDsn = Annotated[str, AfterValidator(_text), AfterValidator(_sentry_dsn)]
ItemUrl = Annotated[str, AfterValidator(_text), AfterValidator(_item_url)]
WebhookUrl = Annotated[SecretStr, AfterValidator(_webhook_url)]
SmtpUrl = Annotated[SecretStr, AfterValidator(_smtp_url)]
Days = Annotated[float, Field(ge=0, le=36_500)]
