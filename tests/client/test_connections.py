"""How the clients handle errors and forks: repeat safe requests, name the cause of others, resume event streams."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dev.ports import free_port
from models import job as model
from queue_manager.client import AsyncClient, Client, ClientError, OutgoingMessage, ServerEvent
from tests.any_jobs import INVOICE
from tests.client.clients import LossyProxy, connected, url_of
from tests.pace import promptly
from tests.real_servers import Servers
from tests.servers.certificates import Certificates
from tests.web.credentials import OPERATOR, VIEWER
from tests.web.queue_client import NAME, Queue
from tests.web.web_process import shared_web


@pytest.fixture
def proxy(queue: Queue) -> Iterator[LossyProxy]:
    with LossyProxy(queue.web.port) as proxy:
        yield proxy


@pytest.fixture
def lossy(kind: str, proxy: LossyProxy) -> Iterator[Client]:
    """A client whose responses the proxy may lose."""
    with connected(kind, url_of(proxy.port)) as client:
        yield client


ProxyAnswer = tuple[int, dict[str, str], str]
"""Status, headers and body."""


@contextmanager
def answering(
    *answers: ProxyAnswer, paths: list[str] | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Run a server that gives these answers, one a request, and adds its path to `paths`; yield its address."""
    remaining = iter(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            if paths is not None:
                paths.append(self.path)
            status, headers, body = next(remaining)
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        url = url_of(server.server_port)
        yield url if tls is None else url.replace("http:", "https:")
        server.shutdown()


# Requests


COUNTS: ProxyAnswer = (
    200,
    {},
    json.dumps({"main": 1, "processing": 0, "dead": 0, "acknowledged": 0, "archived": 0, "overdue": 0}),
)


def test_the_status_is_requested_without_messages(kind: str) -> None:
    paths: list[str] = []
    with answering(COUNTS, paths=paths) as url, connected(kind, url) as client:
        assert client.messages.status().main == 1
    assert paths == ["/api/queue/status?include_messages=false"]


def test_a_message_is_added_once_although_the_response_is_lost(lossy: Client, proxy: LossyProxy) -> None:
    proxy.losses = 2
    id = lossy.messages.enqueue("mail")
    assert lossy.messages.status().main == 1
    assert lossy.messages.get(id).state == "main"
    proxy.losses = 2
    lossy.messages.enqueue_batch([OutgoingMessage(type="mail")])
    assert lossy.messages.status().main == 2


def test_pauses_are_requested_again_if_the_response_is_lost(lossy: Client, proxy: LossyProxy) -> None:
    for request in (
        *(partial(lossy.messages.pause, ["mail"]), partial(lossy.messages.resume, ["mail"])),
        *(partial(lossy.jobs.pause, [INVOICE]), partial(lossy.jobs.resume, [INVOICE])),
        *(partial(lossy.systems.pause, "support-snooze"), partial(lossy.systems.resume, "support-snooze")),
    ):
        proxy.losses = 1
        request()
        assert proxy.losses == 0


def test_consumers_repeat_their_requests_whose_response_is_lost(lossy: Client, proxy: LossyProxy) -> None:
    for settle in ("ack", "nack"):
        lossy.messages.enqueue("mail", max_attempts=1)
        message = lossy.messages.dequeue()
        assert message is not None
        proxy.losses = 1
        message.touch()
        proxy.losses = 1
        with pytest.raises(ClientError, match="LOCK_LOST"):  # it was settled by the first request
            getattr(message, settle)()
    counts = lossy.messages.status()
    assert (counts.acknowledged, counts.dead) == (1, 1)


@pytest.mark.slow
def test_a_message_is_received_again_after_its_deadline_if_the_response_is_lost(
    lossy: Client, proxy: LossyProxy
) -> None:
    id = lossy.messages.enqueue("mail", ack_timeout=4)
    proxy.losses = 1
    message = lossy.messages.dequeue(30)
    assert message is not None
    assert (message.id, message.attempt) == (id, 2)
    message.ack()


def test_a_worker_continues_after_a_lost_connection(lossy: Client, proxy: LossyProxy, queue: Queue) -> None:
    def cut_and_add() -> None:
        proxy.close_connections()
        queue.post("/queue/message", {"type": "mail", "payload": "later"}, X_API_KEY=OPERATOR)

    lossy.messages.enqueue("mail", "now")
    messages = lossy.messages.receive(ack_timeout=6)
    with next(messages) as message:
        assert message.payload == "now"
    timer = threading.Timer(0.3, cut_and_add)
    timer.start()
    with next(messages) as message:
        assert message.payload == "later"
    timer.join()


def test_a_block_that_is_interrupted_rejects_its_message_once(lossy: Client, proxy: LossyProxy) -> None:
    lossy.messages.enqueue("mail")
    message = lossy.messages.dequeue()
    assert message is not None
    proxy.losses = 3
    with pytest.raises(KeyboardInterrupt), message:
        raise KeyboardInterrupt
    assert proxy.losses == 2


def test_a_job_whose_response_is_lost_is_not_stored_again(lossy: Client, proxy: LossyProxy) -> None:
    proxy.losses = 1
    with pytest.raises(ClientError) as caught:
        lossy.jobs.run(INVOICE)
    assert (caught.value.status, caught.value.error) == (None, "no response")
    assert model.jobs().count_documents({}) == 1


def test_a_request_waits_for_a_server_that_starts(kind: str, queue: Queue) -> None:
    proxy = LossyProxy(free_port())  # nothing listens there
    with proxy, connected(kind, url_of(proxy.port)) as client:
        timer = threading.Timer(0.5, setattr, [proxy, "target", queue.web.port])
        timer.start()
        assert client.messages.status().main == 0
        timer.join()


def test_an_unavailable_server_is_an_error(kind: str) -> None:
    url = url_of(free_port())
    with connected(kind, url, retry_for=0.5) as client, promptly(5), pytest.raises(ClientError) as caught:
        client.jobs.run(INVOICE)
    assert (caught.value.status, caught.value.error) == (None, "unreachable")
    assert f"{url}/api/jobs" in caught.value.message


@pytest.mark.parametrize(
    ("url", "key", "argument"),
    [
        ("127.0.0.1:6002", OPERATOR, "base_url"),
        ("localhost:6002", OPERATOR, "base_url"),
        ("http://", OPERATOR, "base_url"),
        ("http://localhost", f"{OPERATOR}\n", "api_key"),  # as it is read from a file
        ("http://localhost", f"{OPERATOR}\r\nx: y", "api_key"),
    ],
)
def test_an_invalid_address_or_key_is_refused_immediately(url: str, key: str, argument: str, kind: str) -> None:
    with pytest.raises(ValueError, match=f"^{argument}: must ") as caught, connected(kind, url, api_key=key):
        pass
    assert OPERATOR not in str(caught.value)


def test_a_private_certificate_authority_is_trusted_by_an_ssl_context_alone(kind: str, tmp_path: Path) -> None:
    certificates = Certificates.made_in(tmp_path / "certificates")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates.path("server.pem"), certificates.path("server.key"))
    trusting = ssl.create_default_context(cafile=certificates.path("ca.pem"))
    with answering(COUNTS, tls=tls) as url:
        with connected(kind, url, ssl_context=trusting) as client:
            assert client.messages.status().main == 1
        with connected(kind, url, retry_for=0) as client, pytest.raises(ClientError, match="certificate verify failed"):
            client.messages.status()


def test_an_error_does_not_contain_the_password_of_the_address(kind: str) -> None:
    url = f"http://user:secret@127.0.0.1:{free_port()}"
    with connected(kind, url, retry_for=0) as client, pytest.raises(ClientError, match="unreachable") as caught:
        client.messages.status()
    assert "secret" not in str(caught.value)


def test_more_than_a_hundred_consumers_share_a_client(queue: Queue) -> None:
    async def run() -> int:
        async with AsyncClient(url_of(queue.web.port), api_key=OPERATOR, retry_for=0) as client:
            polls = [asyncio.create_task(client.messages.dequeue(30)) for _ in range(101)]
            await asyncio.sleep(0)  # each requests its connection
            status = await client.messages.status()
            for poll in polls:
                poll.cancel()
            await asyncio.gather(*polls, return_exceptions=True)
        assert client.http.is_closed
        return status.main

    assert asyncio.run(run()) == 0


def test_a_full_queue_is_retried_after_the_given_delay(kind: str) -> None:
    full = (503, {"retry-after": "1"}, json.dumps({"error": "queue full", "message": "Redis is full"}))
    with answering(full, (201, {}, "{}")) as url, connected(kind, url) as client:
        client.messages.enqueue("mail")
    with answering(full) as url, connected(kind, url, retry_for=0.9) as client, pytest.raises(ClientError) as caught:
        client.messages.enqueue("mail")
    assert (caught.value.status, caught.value.error) == (503, "queue full")


def test_a_response_of_a_proxy_is_an_error(kind: str) -> None:
    bad_gateway: ProxyAnswer = (502, {}, "<html>Bad Gateway</html>")
    page: ProxyAnswer = (200, {}, "<html>Welcome</html>")
    with answering(bad_gateway, page) as url, connected(kind, url, retry_for=0) as client:
        with pytest.raises(ClientError) as caught:
            client.jobs.run(INVOICE)
        assert (caught.value.status, caught.value.error) == (502, "bad gateway")
        with pytest.raises(ClientError) as caught:
            client.jobs.run(INVOICE)
        assert (caught.value.status, caught.value.error) == (200, "invalid response")


def test_a_response_that_cannot_be_decompressed_is_an_error(kind: str) -> None:
    corrupt = (200, {"content-encoding": "gzip"}, "{}")
    with answering(corrupt) as url, connected(kind, url) as client, pytest.raises(ClientError) as caught:
        client.messages.enqueue("mail")
    assert (caught.value.status, caught.value.error) == (200, "invalid response")


def test_a_redirect_is_an_error_that_names_its_target(kind: str) -> None:
    moved = (307, {"location": "https://queue.example.com/api/jobs"}, "")
    with answering(moved) as url, connected(kind, url) as client, pytest.raises(ClientError) as caught:
        client.jobs.run(INVOICE)
    assert str(caught.value) == "307 temporary redirect: to https://queue.example.com/api/jobs"


@pytest.mark.parametrize(
    ("key", "status", "error"),
    [(None, 401, "unauthorized"), ("a key", 401, "unauthorized"), (VIEWER, 403, "forbidden")],
)
def test_a_key_without_the_role_is_an_error(key: str | None, status: int, error: str, kind: str, queue: Queue) -> None:
    with connected(kind, url_of(queue.web.port), api_key=key) as client, pytest.raises(ClientError) as caught:
        client.messages.enqueue("mail")
    assert (caught.value.status, caught.value.error) == (status, error)


def test_a_message_queue_that_is_switched_off_is_an_error(
    kind: str, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    web = shared_web(tmp_path_factory)
    with connected(kind, url_of(web.port)) as client, pytest.raises(ClientError) as caught:
        client.messages.dequeue()
    assert (caught.value.status, caught.value.error) == (404, "not found")


# Events


def test_events_resume_where_the_connection_was_lost(lossy: Client, proxy: LossyProxy, queue: Queue) -> None:
    lossy.messages.enqueue("mail")
    with queue.redis() as client:
        [(start, _)] = client.xrange(f"{NAME}:events")
    with closing(lossy.messages.events(start.decode())) as events:
        ids = [lossy.messages.enqueue("mail")]
        seen = [next(events)]
        proxy.close_connections()
        ids += [lossy.messages.enqueue("mail") for _ in range(3)]
        seen += islice(events, 3)
    assert [ids_of(event) for event in seen] == [[id] for id in ids]
    with closing(lossy.messages.events(seen[1].id)) as events:
        assert [ids_of(event) for event in islice(events, 2)] == [[id] for id in ids[2:]]


def test_events_of_jobs_and_systems_are_received(client: Client) -> None:
    with closing(client.systems.events()) as events:
        event = next(events)
    assert event.name == "overview"
    assert {system["name"] for system in event.data["systems"]} >= {"support-snooze"}
    job = client.jobs.run(INVOICE)
    with closing(client.jobs.events("nonsense")) as events:
        assert next(events).name == "reset"
        client.jobs.cancel(job.id)
        # The process may go on where an earlier listener ended, before the job was stored: it is pending then.
        states = (event.data["job"]["state"] for event in events if event.data["id"] == job.id)
        assert next(state for state in states if state != "pending") == "canceled"


def test_events_end_with_a_permanent_error(kind: str, queue: Queue) -> None:
    with connected(kind, url_of(queue.web.port), api_key="a key") as client, pytest.raises(ClientError) as caught:
        next(client.jobs.events())
    assert caught.value.status == 401


def ids_of(event: ServerEvent) -> Any:
    assert (event.name, event.data["type"]) == ("queue-update", "enqueue")
    return event.data["payload"]["ids"]


# Forks

FORK = """
import asyncio, os, sys
from queue_manager.client import AsyncClient, Client

kind, url = sys.argv[1:]
client = Client(url) if kind == "sync" else AsyncClient(url)
in_parent = in_child = lambda result: result
if kind == "async":
    in_parent, in_child = asyncio.Runner().run, asyncio.run
client.http.headers["x-program"] = "mine"
print(in_parent(client.messages.get("1")).payload, flush=True)
if os.fork() == 0:
    print(in_child(client.messages.get("1")).payload, flush=True)
    os._exit(0)
os.wait()
print(in_parent(client.messages.get("1")).payload)
"""


def test_a_forked_process_does_not_use_the_connections_of_its_parent(kind: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps the connection open

        def do_GET(self) -> None:
            message = {
                "id": "1",
                "type": "mail",
                "payload": f"{self.headers['x-program']}:{self.client_address[1]}",
                "priority": 0,
                "created_at": "2026-01-01T00:00:00Z",
                "attempt_count": 1,
            }
            body = json.dumps(message).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        command = [sys.executable, "-c", FORK, kind, url_of(server.server_port)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        server.shutdown()
    assert (result.returncode, result.stderr) == (0, "")
    before, in_child, after = result.stdout.split()
    assert in_child.startswith("mine:")
    assert in_child not in (before, after)
