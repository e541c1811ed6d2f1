"""A real `queue-manager web` for tests, and its responses."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import jwt
import pytest

from dev.children import Child, spawn
from dev.ports import free_port, is_answering
from dev.servers import Mongo, Valkey
from tests.eventually import eventually
from tests.forked import Forked, fork

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from queue_manager.cli import main; main()", "web"]
SECRET = "a secret of the tests, long enough for HS256"
SNOOZE = "/api/trigger/conversations/support-snooze"
PAGES = (
    "/",
    "/rooms",
    "/reviews",
    "/thumbnails",
    "/messages",
    "/messages/failed",
    "/jobs",
    "/schedule",
    "/workers",
    "/audit",
    "/failures",
    "/docs",
)
"""The pages for people."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    text: str
    took: float

    @property
    def body(self) -> Any:
        return json.loads(self.text)


def answered(ask: Callable[[], Answer]) -> Answer:
    """Return the answer of a process whose servers may stand still for seconds: 503, after which it is asked again.

    Raises AssertionError: it still answers 503 after half a minute.
    """

    def read() -> Answer:
        answer = ask()
        assert answer.status != 503, answer.text
        return answer

    return eventually(read)


@dataclass(frozen=True)
class Web:
    """The process, by its address."""

    child: Child | Forked
    port: int
    log_path: Path

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.ask("POST", path, body, **headers)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send exactly the bytes that are given, to any path, and follow no redirect.

        A body that is neither bytes nor text is written as JSON.
        """
        data = body if body is None or isinstance(body, bytes | str) else json.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        began = time.monotonic()
        try:
            connection.request(method, path, body=data.encode() if isinstance(data, str) else data, headers=named)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode(), time.monotonic() - began)
        finally:
            connection.close()


@contextmanager
def web(directory: Path, *arguments: str, **env: str) -> Iterator[Web]:
    """Start the command on a free port and wait until it answers."""
    with (directory / "web.log").open("wb") as log:
        yield from _answering(
            directory,
            lambda port: spawn(
                [*COMMAND, *_on(port), *arguments], env=_environment(env), cwd=directory, stdout=log, stderr=log
            ),
        )


@contextmanager
def forked_web(directory: Path, *arguments: str, **env: str) -> Iterator[Web]:
    """Start it on a free port, quickly, and wait until it answers."""
    yield from _answering(
        directory,
        lambda port: fork(
            ["web", *_on(port), *arguments], env=_environment(env), cwd=directory, stdout=directory / "web.log"
        ),
    )


@dataclass(frozen=True)
class Lonely:
    """A web process whose servers are not there yet."""

    process: Web
    mongo: Mongo
    valkey: Valkey


@contextmanager
def lonely_web(directory: Path, **env: str) -> Iterator[Lonely]:
    """Start a web process; its servers are killed at the end if they were started."""
    mongo, valkey = Mongo(directory / "mongo"), Valkey(directory / "valkey")
    with forked_web(directory, MONGO_DB_URL=mongo.url, REDIS_URL=valkey.url, **env) as process:
        yield Lonely(process, mongo, valkey)
    valkey.kill()
    mongo.kill()


def _on(port: int) -> list[str]:
    return ["--port", str(port)]


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **env}


def _answering(directory: Path, start: Callable[[int], Child | Forked]) -> Iterator[Web]:
    port = free_port()
    child = start(port)
    try:
        eventually(lambda: is_answering(port) or child.poll() is not None)
        yield Web(child=child, port=port, log_path=directory / "web.log")
    finally:
        child.kill()


SHOWN_LOG = 2_000  # characters

_shared: dict[frozenset[tuple[str, str]], Web] = {}
_at_exit = ExitStack()
atexit.register(_at_exit.close)


def shared_web(directories: pytest.TempPathFactory, **env: str) -> Web:
    """Return the process that all tests with this environment use: a start takes a second.

    The test that finds it dead fails; the next one gets another.
    """
    key = frozenset(env.items())
    if key not in _shared:
        _shared[key] = _at_exit.enter_context(forked_web(directories.mktemp("web"), **env))
    if (code := _shared[key].child.poll()) is not None:
        log = _shared.pop(key).log[-SHOWN_LOG:]
        pytest.fail(f"The shared web process of {env} ended with exit code {code}. The end of its log:\n{log}")
    return _shared[key]


def token(*accounts: str, secret: str = SECRET, **claims: Any) -> str:
    """Sign a token as the product would."""
    return jwt.encode({"accounts": list(accounts), **claims}, secret, algorithm="HS256")
