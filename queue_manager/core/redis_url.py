"""URLs of Redis: `redis://`, `rediss://` (TLS), `unix://` (a socket), `sentinel://` and `cluster://`.

A rule raises `ValueError` with what the URL must be.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

REDIS_PORT, SENTINEL_PORT = 6379, 26379
NODE_TIMEOUTS = {"socket_timeout": 1, "socket_connect_timeout": 1}  # seconds for each node, one after another
CREDENTIALS = ("username", "password")
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_QUOTING = "special characters of a password are written as %40 and the like"


class _Form(NamedTuple):
    example: str
    options: tuple[str, ...]


_FORMS = {
    "redis": _Form("redis://cache:6379/0", ()),
    "rediss": _Form("rediss://cache:6379/0", TLS_FILES),
    "unix": _Form("unix:///run/redis/redis.sock?db=0", ("db",)),
    "sentinel": _Form(
        "sentinel://a:26379,b:26379/0?master_name=mymaster",
        ("master_name", "sentinel_username", "sentinel_password", *TLS_FILES),
    ),
}
REDIS_SCHEMES = tuple(_FORMS)
CLUSTER_SCHEME = "cluster"
_FORMS[CLUSTER_SCHEME] = _Form("cluster://a:6379,b:6379/0", TLS_FILES)


def parse_redis_url(url: str) -> dict[str, Any]:
    """Return the options of a connection, by their names in redis-py.

    A `sentinel://` URL has no address, but `sentinel`: the options of kombu and redis-py for finding the master. A
    `cluster://` URL has `cluster`: the nodes, and the options of a connection to each.
    """
    scheme = url.partition("://")[0]
    if scheme not in _FORMS:
        *others, last = (f"{one}://" for one in REDIS_SCHEMES)
        raise ValueError(f"a {', '.join(others)} or {last} URL, such as {_FORMS['redis'].example}; {_QUOTING}")
    form = _FORMS[scheme]
    accepted = f"a {scheme}:// URL such as {form.example}, {_listed(form.options)}; {_QUOTING}"
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        nodes = [_address(node, scheme) for node in parts.netloc.rpartition("@")[2].split(",")]
    except ValueError:
        raise ValueError(accepted) from None
    database = options.pop("db", "0") if scheme == "unix" else parts.path.removeprefix("/") or "0"
    hosts = [host for host, _ in nodes]
    is_valid = (
        ";" not in url  # kombu would read the URLs of several servers
        and not parts.fragment
        and {*options} <= {*form.options}
        and (database.isascii() and database.isdigit())
        and (len(hosts) == 1 or scheme in ("sentinel", CLUSTER_SCHEME))
        and (int(database) == 0 or scheme != CLUSTER_SCHEME)
        and (hosts == [""] and len(parts.path) > 1 if scheme == "unix" else all(hosts) or scheme == "redis")
    )
    if not is_valid:
        raise ValueError(accepted)
    tls = {name: options[name] for name in TLS_FILES if name in options}
    _require_files(tls)
    found: dict[str, Any] = {"db": int(database), **_credentials(parts), **tls}
    if scheme == "unix":
        return {**found, "path": unquote(parts.path)}
    if scheme == "sentinel":
        return {**found, "sentinel": _sentinel(nodes, options, tls)}
    if scheme == CLUSTER_SCHEME:
        return {**found, "cluster": {"nodes": nodes, "node_options": _node_options(_credentials(parts), tls)}}
    return {**found, "host": hosts[0] or "localhost", "port": nodes[0][1]}


def _sentinel(nodes: list[tuple[str, int]], options: dict[str, str], tls: dict[str, str]) -> dict[str, Any]:
    login = {name: options[f"sentinel_{name}"] for name in CREDENTIALS if f"sentinel_{name}" in options}
    return {
        "sentinels": nodes,
        "master_name": options.get("master_name") or "mymaster",
        "sentinel_kwargs": _node_options(login, tls),
    }


def _node_options(login: dict[str, str], tls: dict[str, str]) -> dict[str, Any]:
    return {**NODE_TIMEOUTS, **login, **({"ssl": True, **tls} if tls else {})}


def is_encrypted(url: str, options: dict[str, Any]) -> bool:
    """Return True if the connection uses TLS. Several nodes use it if the URL names files for it."""
    return url.startswith("rediss:") or not options.keys().isdisjoint(TLS_FILES)


def public_url(url: str) -> str:
    """Return the URL as redis-py reads it, without credentials and options: `redis://cache:6379/0`.

    The host of a `sentinel://` URL is the name of the master.
    """
    parsed = parse_redis_url(url)
    if "path" in parsed:
        return f"unix://{parsed['path']}?db={parsed['db']}"
    if "sentinel" in parsed:
        return f"redis://{parsed['sentinel']['master_name']}/{parsed['db']}"
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _listed(options: tuple[str, ...]) -> str:
    return f"with no other options than {', '.join(options)}" if options else "without options"


def _address(node: str, scheme: str) -> tuple[str, int]:
    parts = urlsplit(f"//{node}")
    if parts.port == 0:
        raise ValueError("no port")
    return parts.hostname or "", parts.port or (SENTINEL_PORT if scheme == "sentinel" else REDIS_PORT)


def _credentials(parts: SplitResult) -> dict[str, str]:
    given = {"username": parts.username, "password": parts.password}
    return {name: unquote(value) for name, value in given.items() if value}


def require_file(option: str, path: str) -> None:
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        raise ValueError(f"a URL whose {option} is the path of a readable file")


def _require_files(tls: dict[str, str]) -> None:
    for name, path in tls.items():
        require_file(name, path)
    if "ssl_keyfile" in tls and "ssl_certfile" not in tls:
        raise ValueError("a URL with ssl_certfile if it has ssl_keyfile")
