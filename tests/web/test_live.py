"""Socket.IO: a client receives only events of accounts in its token, and only until the token expires."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from typing import Any

import jwt
import pytest
import socketio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Request, TextMessage
from wsproto.extensions import PerMessageDeflate

from dev.servers import Valkey
from services.realtime import RedisEvents
from tests.deployment.programs import replaced
from tests.documented import DOCS, block
from tests.eventually import eventually
from tests.pace import paced, promptly
from tests.real_servers import Servers
from tests.web.listener import ConnectionRefused, Listener
from tests.web.web_process import SECRET, Web, forked_web, shared_web, token

EVENT = "support_room_updated"
WEBSOCKET = "/socket.io/?EIO=4&transport=websocket"
POLLING = "/socket.io/?EIO=4&transport=polling"


@pytest.fixture(scope="session")
def secured(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    """A process that asks for tokens."""
    return shared_web(tmp_path_factory, SOCKETIO_TOKEN_SECRET=SECRET)


@pytest.fixture(scope="session")
def unsecured(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    """A process on loopback without a secret."""
    return shared_web(tmp_path_factory)


@pytest.fixture
def events(clean: Servers) -> RedisEvents:
    """What workers emit with."""
    return RedisEvents(clean.valkey.url, channel="socketio")


def woken(room: str) -> dict[str, Any]:
    return {"room_id": room, "action": "unsnoozed", "timestamp": "2026-01-31T09:30:00.000Z"}


def test_a_client_receives_only_events_of_the_accounts_of_its_token(secured: Web, events: RedisEvents) -> None:
    with Listener(secured.port, {"token": token("a", "b")}) as client:
        for account in ("other", "a", "b"):
            events.emit_all(EVENT, [(f"support-{account}", woken(account))])
        assert [client.next_event(), client.next_event()] == [(EVENT, woken("a")), (EVENT, woken("b"))]


@pytest.mark.slow
def test_the_client_of_the_documentation_receives_events_of_its_account(secured: Web, events: RedisEvents) -> None:
    page = DOCS / "how-to" / "socketio.md"
    code = block(0, heading="Authenticate with a signed token", page=page)
    (account,) = re.findall(r'"accounts": \["(\w+)"\]', code)
    printed: Queue[Any] = Queue()
    names: dict[str, Any] = {"SOCKETIO_TOKEN_SECRET": SECRET, "print": printed.put}
    exec(replaced(code, {"https://queue-manager.example": f"http://127.0.0.1:{secured.port}"}), names)
    try:
        for one in ("other", account):
            events.emit_all(EVENT, [(f"support-{one}", woken(one))])
        assert printed.get(timeout=20) == woken(account)
    finally:
        names["client"].disconnect()


def test_a_client_may_leave_and_join_its_own_accounts_only(secured: Web, events: RedisEvents) -> None:
    with Listener(secured.port, {"token": token("a", "b")}) as client:
        assert client.call("leave", "a") == {"left": "a"}
        refusal = client.call("join", "other")
        assert refusal == {"error": "refused", "message": "The token does not name the account other"}
        for account in ("a", "other", "b"):
            events.emit_all(EVENT, [(f"support-{account}", woken(account))])
        assert client.next_event() == (EVENT, woken("b"))
        assert client.call("join", "a") == {"joined": ["a"]}
        events.emit_all(EVENT, [("support-a", woken("a"))])
        assert client.next_event() == (EVENT, woken("a"))


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        (None, "A token is required"),
        ({}, "A token is required"),
        ("text", "A token is required"),
        ({"token": 5}, "A token is required"),
        ({"token": "nonsense"}, "The token is refused"),
        ({"token": token("a", secret="another secret, also long enough for it")}, "Signature verification failed"),
        ({"token": token("a", exp=int(time.time()) - 1)}, "Signature has expired"),
        ({"token": token("a", exp=None)}, "The token is refused"),
        ({"token": token("a", exp=float("inf"))}, "The token is refused"),
        ({"token": token("a", exp=10**400)}, "The token is refused"),
        ({"token": jwt.encode({"accounts": ["a"]}, "", algorithm="none")}, "The token is refused"),
        ({"token": jwt.encode({"account": "a"}, SECRET)}, 'missing the "accounts" claim'),
        ({"token": token("a", "no/account")}, "must be a list of account ids"),
        ({"token": token("")}, "must be a list of account ids"),
        ({"token": token("x" * 65)}, "must be a list of account ids"),
    ],
)
def test_a_wrong_missing_or_expired_token_is_refused(secured: Web, auth: Any, said: str) -> None:
    with pytest.raises(ConnectionRefused, match=said):
        Listener(secured.port, auth)


def test_a_client_of_the_protocol_of_version_2_is_refused(unsecured: Web) -> None:
    assert unsecured.get("/socket.io/?EIO=3&transport=polling").status == 400
    assert unsecured.get("/socket.io/?EIO=4&transport=polling").status == 200


@pytest.mark.slow
def test_a_client_whose_token_expires_is_disconnected_within_two_seconds(secured: Web) -> None:
    step = clock_step()
    ends_at = int(time.time()) + 6  # time to connect, also on a machine that stands still for seconds
    tokens = [{"token": token("a", exp=exp)} for exp in (ends_at, str(ends_at), ends_at)]
    with paced() as pace, ExitStack() as stack:
        *_, leaving = clients = [stack.enter_context(Listener(secured.port, one)) for one in tokens]
        leaving.send('42["disconnect"]')  # an event of that name does not keep it connected
        ends = []
        for client in clients:
            client.wait_until_disconnected()
            ends.append(time.time())
    stepped = abs(clock_step() - step)
    assert -stepped <= ends[0] - ends_at <= ends[-1] - ends_at < pace.allowed(2) + stepped


def clock_step() -> float:
    """Return the seconds by which the wall clock is ahead of the monotonic one; a difference is a step of the clock."""
    return time.time() - time.monotonic()


@pytest.mark.parametrize(
    "packet",
    [
        '451000000000-["join"]',
        '461-1["join"]',
        "43999[1]",
        "44{}",
        "49",
        "42[]",
        '42{"a": 1}',
        "42",
        "42[",
        f"42{'[' * 9_999}",
    ],
)
def test_a_packet_that_no_client_needs_is_ignored(secured: Web, packet: str) -> None:
    before = len(secured.log)
    with Listener(secured.port, {"token": token("a")}) as client:
        client.send(packet)
        assert client.call("join", "a") == {"joined": ["a"]}  # it is not taken for an attachment
    assert "Traceback" not in secured.log[before:]


class WebSocket:
    """A WebSocket for packets of Engine.IO."""

    def __init__(self, process: Web, query: str = "") -> None:
        self.socket = socket.create_connection(("127.0.0.1", process.port), timeout=30)
        self.protocol = WSConnection(ConnectionType.CLIENT)
        self.send(Request(host="127.0.0.1", target=WEBSOCKET + query))
        self.until(lambda event: isinstance(event, AcceptConnection))

    def send(self, event: Request | TextMessage) -> None:
        self.socket.sendall(self.protocol.send(event))

    def until(self, is_found: Callable[[Any], bool]) -> None:
        """Wait for an event."""
        while True:
            self.protocol.receive_data(self.socket.recv(65_536))
            if any(map(is_found, list(self.protocol.events()))):
                return

    def until_text(self, text: str) -> None:
        self.until(lambda event: isinstance(event, TextMessage) and event.data.startswith(text))


def is_closed(event: Any) -> bool:
    return isinstance(event, CloseConnection) and event.code == 1008


def new_session(process: Web) -> str:
    """Begin to poll; return the query that names the session."""
    return f"&sid={json.loads(process.get(POLLING).text[1:])['sid']}"


def connected_session(process: Web) -> str:
    """Begin to poll with a token; return the query that names the session."""
    query = new_session(process)
    process.post(POLLING + query, "40" + json.dumps({"token": token("a")}))
    return query


def upgraded(process: Web) -> WebSocket:
    """Return the WebSocket of a client that has presented its token by long polling."""
    client = WebSocket(process, connected_session(process))
    client.send(TextMessage("2probe"))
    client.until_text("3probe")
    client.send(TextMessage("5"))
    return client


@pytest.mark.slow
def test_a_websocket_without_credentials_is_closed(secured: Web) -> None:
    with Listener(secured.port, {"token": token("a")}) as connected:
        client, nobody = upgraded(secured), WebSocket(secured)
        nobody.until(is_closed)
        assert connected.call("join", "a") == {"joined": ["a"]}
        client.send(TextMessage('421["join","a"]'))
        client.until_text('431[{"joined":["a"]}]')
    for one in (client, nobody):
        one.socket.close()


@pytest.mark.slow
def test_a_websocket_whose_client_stays_after_its_token_expired_is_closed(secured: Web) -> None:
    client = WebSocket(secured)
    client.send(TextMessage("40" + json.dumps({"token": token("a", exp=int(time.time()) + 6)})))
    client.until_text("41")
    client.until(is_closed)
    client.socket.close()


@pytest.mark.slow
def test_a_session_of_long_polling_without_credentials_ends(secured: Web) -> None:
    connected, nobody = connected_session(secured), new_session(secured)
    assert secured.get(POLLING + nobody).text == "1"  # the end, after the timeout
    assert secured.get(POLLING + nobody).status == 400
    assert secured.get(POLLING + connected).text.startswith("40")
    secured.post(POLLING + connected, '421["join","a"]')
    assert secured.get(POLLING + connected).text == '431[{"joined":["a"]}]'


def test_compressed_frames_of_clients_are_not_decompressed(secured: Web) -> None:
    offer = Request(host="127.0.0.1", target=WEBSOCKET, extensions=[PerMessageDeflate()])
    connection = WSConnection(ConnectionType.CLIENT)
    with socket.create_connection(("127.0.0.1", secured.port), timeout=10) as client:
        client.sendall(connection.send(offer))
        connection.receive_data(client.recv(65_536))
    answer = next(connection.events())
    assert isinstance(answer, AcceptConnection)
    assert answer.extensions == []


def test_an_ordinary_client_connects_from_another_origin(secured: Web, events: RedisEvents) -> None:
    async def listen() -> Any:
        received: asyncio.Queue[Any] = asyncio.Queue()
        client = socketio.AsyncClient(reconnection=False, handle_sigint=False)
        client.on(EVENT, received.put)
        await client.connect(
            f"http://127.0.0.1:{secured.port}",
            headers={"Origin": "https://app.example"},
            auth={"token": token("a")},
        )
        events.emit_all(EVENT, [("support-a", woken("a"))])
        event = await asyncio.wait_for(received.get(), 10)
        await client.disconnect()
        return event

    assert asyncio.run(listen()) == woken("a")


def test_without_a_secret_any_account_may_be_joined(unsecured: Web, events: RedisEvents) -> None:
    with Listener(unsecured.port) as client:
        assert client.call("join", "a-1_Z") == {"joined": ["a-1_Z"]}
        events.emit_all(EVENT, [("support-a-1_Z", woken("1"))])
        assert client.next_event() == (EVENT, woken("1"))


@pytest.mark.parametrize("account", ["", "a b", "a/b", "x" * 65, "é", "a\n", 5, None, ["a"], "*"])
def test_an_invalid_account_id_is_refused(unsecured: Web, account: Any) -> None:
    with Listener(unsecured.port) as client:
        for event in ("join", "leave"):
            assert client.call(event, account)["error"] == "refused"


@pytest.mark.parametrize("header", [{"origin": "https://evil.example"}, {"host": "evil.example"}])
def test_without_a_secret_pages_of_other_sites_are_refused(unsecured: Web, header: dict[str, Any]) -> None:
    with pytest.raises(ConnectionRefused, match="HTTP 4"):
        Listener(unsecured.port, **header)


def test_events_resume_soon_after_an_outage_of_redis(clean: Servers, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as own, forked_web(tmp_path, REDIS_URL=own.url) as process:
        with Listener(process.port) as client:
            client.call("join", "a")
            own.kill()
            with promptly(5):
                eventually(lambda: "No live events: Redis at" in process.log)
            own.start()
            with promptly(5):
                eventually(lambda: "Live events flow again" in process.log)
            RedisEvents(own.url, channel="socketio").emit_all(EVENT, [("support-a", woken("1"))])
            assert client.next_event() == (EVENT, woken("1"))


def test_a_process_that_receives_no_events_logs_a_warning(clean: Servers, tmp_path: Path) -> None:
    with forked_web(tmp_path, SOCKETIO_ADAPTER="redis") as process:
        assert "SOCKETIO_ADAPTER does not contain python" in process.log
