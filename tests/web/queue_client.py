"""A client of the queue's HTTP API that sends exact bytes, and a web process for it."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import pytest
import redis

from tests.real_servers import Servers
from tests.web.web_process import Answer, Web, shared_web

DATABASE = 7
"""Of the tests' Redis: nothing else uses it, so that a sweeper that runs alongside other tests disturbs none."""
NAME = "tested"
RECEIVE_BUFFER = 64 * 1024  # bytes


@dataclass(frozen=True)
class Queue:
    """The API of one web process, and the server that the queue is on."""

    web: Web
    redis_url: str

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request. A body that is neither bytes nor text is written as JSON."""
        return self.web.ask(method, f"/api{path}", body, **headers)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.ask("POST", path, body, **headers)

    def put(self, path: str, body: Any = None) -> Answer:
        return self.ask("PUT", path, body)

    def delete(self, path: str) -> Answer:
        return self.ask("DELETE", path)

    # The usual steps, which must succeed

    def add(self, type: str = "mail", payload: Any = None, **members: Any) -> str:
        answer = self.post("/queue/message", {"type": type, "payload": payload, **members})
        assert answer.status == 201, answer.text
        return str(answer.body["id"])

    def take(self, query: str = "") -> Any:
        answer = self.get(f"/queue/message?{query}")
        assert answer.status == 200, answer.text
        return answer.body

    def dead(self, **members: Any) -> str:
        """Return the id of a new dead letter."""
        id = self.add(maxAttempts=1, priority=9, **members)
        taken = self.take()
        assert taken["id"] == id
        nacked = self.post(f"/queue/message/{id}/nack", {"lock_token": taken["lock_token"], "errorReason": "broken"})
        assert nacked.body["requeued"] is False
        return id

    def ids(self, place: str, query: str = "") -> list[str]:
        return [message["id"] for message in self.page(place, query)["messages"]]

    def page(self, place: str, query: str = "") -> Any:
        answer = self.get(f"/queue/{place}/messages?{query}")
        assert answer.status == 200, answer.text
        return answer.body

    def sizes(self) -> tuple[int, ...]:
        """Return how many are in main, processing, dead, acknowledged, archived."""
        status = self.get("/queue/status").body
        return tuple(status[place] for place in ("main", "processing", "dead", "acknowledged", "archived"))

    @contextmanager
    def redis(self) -> Iterator[Any]:
        """A client that sees bytes, whereas redis-py's types allow for each protocol and decoding."""
        with redis.Redis.from_url(self.redis_url) as client:
            yield client


def environment(redis_url: str, **env: str) -> dict[str, str]:
    return {"QM_MESSAGE_QUEUE": "true", "QM_QUEUE_REDIS_URL": redis_url, "QUEUE_NAME": NAME, **env}


def empty_queue(
    servers: Servers, directories: pytest.TempPathFactory, database: int = DATABASE, /, **env: str
) -> Queue:
    """Return the queue of the web process that all tests with this environment use, emptied.

    The stream of events looks trimmed, not lost: a loss of data would end connections to it.
    """
    url = servers.valkey.url.removesuffix("/0") + f"/{database}"
    chosen = environment(url, **env)
    queue = Queue(shared_web(directories, **chosen), url)
    events = f"{chosen['QUEUE_NAME']}:events"
    with queue.redis() as client, client.pipeline() as pipe:
        pipe.flushdb()
        pipe.xadd(events, {"event": "{}"})
        pipe.xtrim(events, maxlen=0, approximate=False)
        pipe.execute()
    return queue


class Stream:
    """A client of the event stream, on a socket of its own."""

    def __init__(
        self, web: Web, path: str = "/api/queue/events", *, last: str | None = None, query: str = "", **headers: str
    ) -> None:
        self._socket = socket.socket()
        # The kernel may let it grow to 32 MB: a server would not wait for a client that reads nothing.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        self._socket.settimeout(20)
        self._socket.connect(("127.0.0.1", web.port))
        sent = headers | ({"Last_Event_ID": last} if last is not None else {})
        header = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in sent.items())
        self._socket.sendall(f"GET {path}{query} HTTP/1.1\r\nHost: 127.0.0.1:{web.port}\r\n{header}\r\n".encode())
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers = dict(self._header_lines())
        self.last = last
        self.is_complete = False
        """True once the server has ended it, not cut it off."""
        self._blocks: deque[str] = deque()

    def _header_lines(self) -> Iterator[tuple[str, str]]:
        while line := self._file.readline().decode().strip():
            name, _, value = line.partition(": ")
            yield name.lower(), value

    def blocks(self) -> Iterator[dict[str, str]]:
        """Give each block of lines that nobody was given yet, until the stream ends."""
        while self._blocks or self._read():
            yield dict(line.partition(": ")[::2] for line in self._blocks.popleft().split("\r\n"))

    def _read(self) -> bool:
        """Read what was sent at once. Return True unless it was the end."""
        line = self._file.readline()
        size = int(line or b"0", 16)
        self.is_complete = line != b"" and size == 0
        self._blocks += self._file.read(size).decode().strip("\r\n").split("\r\n\r\n") if size else []
        self._file.readline()
        return size > 0

    def events(self) -> Iterator[tuple[str, Any]]:
        """Give the name and the data of each event that a browser would hear, and keep the id as it would."""
        for block in self.blocks():
            self.last = block.get("id", self.last)
            if block.get("data"):  # a ping has none
                yield block["event"], json.loads(block["data"])

    def until(self, is_last: Callable[[Any], bool]) -> list[Any]:
        """Return the updates up to the one that is looked for."""
        seen = []
        for name, data in self.events():
            assert name == "queue-update"
            seen.append(data)
            if is_last(data):
                return seen
        raise AssertionError(f"the stream ended after {seen}")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def size_of_response(client: socket.socket) -> int:
    """Read the rest of a response in chunks; return its bytes. The connection stays open, for another request."""
    client.settimeout(40)
    size, end = 0, b""
    while end != b"0\r\n\r\n":
        some = client.recv(1 << 20)
        assert some, "the connection was closed in the middle"
        size, end = size + len(some), (end + some)[-5:]
    return size
