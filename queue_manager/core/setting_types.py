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

REDIS_SCHEMES = ("redis", "rediss")
STOCK_SCHEMES = ("sentinel", "amqp", "amqps")
"""Schemes of brokers that only kombu's own transports serve."""
TEXT_RULE = "text in UTF-8 without control characters"
SOCKETIO_ADAPTERS = {"python", "redis", "redis-streams"}
MIN_SECRET_LENGTH = 32  # characters, the strength of an HS256 signature
_COLLECTION = re.compile(r"[A-Za-z0-9_-]([A-Za-z0-9_.-]{0,118}[A-Za-z0-9_-])?")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}|\{[A-Za-z0-9_.-]{1,64}\}")
# Options of MONGO_DB_URL in lower case, with the values under which acknowledged writes are durable and readable.
_STRONG_OPTIONS = {
    "w": ("majority",),
    "journal": ("true",),
    "j": ("true",),
    "readpreference": ("primary",),
    "readconcernlevel": ("majority", "linearizable"),
}


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
    accepted = 'texts separated by commas, such as a,b, or a JSON list of texts, such as ["a", "b"]'
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


def _module_names(names: list[str]) -> list[str]:
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError("names of Python modules, separated by commas or as a JSON list, such as billing.jobs")
    return names


def _socketio_adapters(value: Any) -> list[str]:
    names = _text_list(value)
    if not names or not set(names) <= SOCKETIO_ADAPTERS:
        raise ValueError("one or more of python, redis and redis-streams, separated by commas or as a JSON list")
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
    return name


def _file_path(path: Path) -> Path:
    if str(path).lstrip().startswith(("[", "{")):
        raise ValueError("the path of a file; the keys themselves belong in QM_API_KEYS")
    return path


def _mongo_url(url: str) -> str:
    accepted = "a mongodb:// URL whose path names the database, such as mongodb://db:27017/product"
    try:
        # Parsed by the driver; a mongodb+srv:// URL needs a DNS lookup, so only its form is checked.
        database = (
            urlsplit(url).path.strip("/") if url.startswith("mongodb+srv://") else parse_mongo_uri(url)["database"]
        )
    except (PyMongoError, ValueError):
        raise ValueError(f"{accepted}; special characters of a password are written as %40 and the like") from None
    if not database:
        raise ValueError(accepted)
    _refuse_weak_options(url)
    return url


def _refuse_weak_options(url: str) -> None:
    """Refuse options under which a fail-over loses acknowledged writes, or reads are stale."""
    # Names of options are case-insensitive, and MongoDB's drivers also separate them by semicolons.
    options = parse_qsl(url.partition("?")[2].replace(";", "&"))
    for name, value in options:
        strong = _STRONG_OPTIONS.get(name.lower())
        if strong is not None and value.lower() not in strong:
            raise ValueError(f"{name}={strong[0]}, or the URL without {name}: another value weakens the guarantees")


def _redis_url(url: str) -> str:
    accepted = "a redis:// or rediss:// URL whose path is a database number, such as redis://cache:6379/0"
    try:
        parts = urlsplit(url)
        is_readable = parts.port != 0 and parts.scheme in ("redis", "rediss") and not parts.fragment
    except ValueError:
        is_readable = False
    if not is_readable or not re.fullmatch(r"/?\d*", parts.path):
        raise ValueError(f"{accepted}; special characters of a password are written as %40 and the like")
    if parts.query:
        raise ValueError(f"{accepted}, without options")
    return url


def _broker_url(url: str) -> str:
    kinds = "a redis://, rediss://, sentinel://, amqp:// or amqps:// URL"
    scheme = url.partition("://")[0]
    if scheme in REDIS_SCHEMES:
        return _redis_url(url)
    nodes = url.split(";") if scheme == "sentinel" else [url]
    try:
        parts = [urlsplit(node) for node in nodes]
        is_readable = all(one.hostname and one.port != 0 and one.scheme == scheme for one in parts)
    except ValueError:
        is_readable = False
    if scheme not in STOCK_SCHEMES or not is_readable or any(one.query or one.fragment for one in parts):
        raise ValueError(f"{kinds} without options; special characters of a password are written as %40 and the like")
    if scheme == "sentinel":
        databases = {(one.username, one.password, one.path) for one in parts}
        if len(databases) > 1 or not re.fullmatch(r"/?\d*", parts[0].path):
            raise ValueError("sentinel:// URLs separated by semicolons, with the same credentials and database number")
    return url


def _long_secret(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < MIN_SECRET_LENGTH:
        raise ValueError(f"a secret of at least {MIN_SECRET_LENGTH} characters")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_long_secret)]
ApiKeys = Annotated[list[ApiKey], NoDecode, BeforeValidator(api_keys.parse)]
TrueOrFalse = Annotated[bool, BeforeValidator(_true_or_false)]
TextList = Annotated[list[str], NoDecode, BeforeValidator(_text_list)]
ModuleNames = Annotated[list[str], NoDecode, AfterValidator(_module_names), BeforeValidator(_text_list)]
SocketioAdapters = Annotated[list[str], NoDecode, BeforeValidator(_socketio_adapters)]
Text = Annotated[str, AfterValidator(_text)]
FilePath = Annotated[Path, AfterValidator(_file_path)]
CollectionName = Annotated[str, AfterValidator(_collection_name)]
QueueKeyPrefix = Annotated[str, AfterValidator(_queue_key_prefix)]
MongoUrl = Annotated[str, AfterValidator(_text), AfterValidator(_mongo_url)]
RedisUrl = Annotated[str, AfterValidator(_text), AfterValidator(_redis_url)]
BrokerUrl = Annotated[str, AfterValidator(_text), AfterValidator(_broker_url)]
Days = Annotated[float, Field(ge=0, le=36_500)]
