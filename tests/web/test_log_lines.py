"""The log of the web process: each entry is one line, cannot be forged, and contains no key or token."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.real_servers import Servers
from tests.web.credentials import KEYS, OPERATOR, UNKNOWN, log_in
from tests.web.listener import Listener
from tests.web.queue_client import environment
from tests.web.web_process import Web, forked_web, token

FORGED = "05:40:00.000000 [info     ] Change requested initiator=QM/access method=POST path=/api/jobs/clear who=alice"
QUERY = f"EIO=4&transport=polling&sid=x%0a{FORGED.replace(' ', '%20')}%0d%1b[31m%E2%80%A8"
ENTRY = re.compile(r"\d\d:\d\d:\d\d\.\d{6} \[\w+ *\] ")


def is_entry(line: str) -> bool:
    return ENTRY.match(line) is not None


def send_bad_requests(process: Web) -> None:
    """Send what libraries log errors about: unknown sessions, odd versions, odd packets, odd HTTP."""
    for query in (QUERY, QUERY.replace("EIO=4", "EIO=%0a3"), QUERY.replace("polling", "%0apolling")):
        assert process.get(f"/socket.io/?{query}").status == 400
    assert process.post(f"/socket.io/?{QUERY}", "4x\n" + FORGED).status == 400
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nbad header\r\n{FORGED}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.slow
@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_no_request_can_inject_a_log_line(level: str, servers: Servers, tmp_path: Path) -> None:
    url = servers.valkey.url
    with forked_web(tmp_path, **environment(url, QM_API_KEYS=KEYS, QM_JOBS="true", QM_LOG_LEVEL=level)) as process:
        send_bad_requests(process)
        process.post(f"/api/jobs/x%0a{FORGED[:27].replace(' ', '%20')}%1b/cancel", "{}", X_API_KEY=OPERATOR)
        assert eventually(lambda: "Invalid session" in process.log and "/cancel" in process.log)
        lines = process.log.split("\n")
        assert lines.pop() == ""
        assert [line for line in lines if not is_entry(line)] == []
        assert [line for line in lines if line.startswith(FORGED[:30])] == []
        assert "\x1b" not in process.log
        assert "\u2028" not in process.log


def test_every_log_line_is_json_if_configured(servers: Servers, tmp_path: Path) -> None:
    url = servers.valkey.url
    with forked_web(tmp_path, **environment(url, QM_API_KEYS=KEYS, QM_LOG_FORMAT="json")) as process:
        send_bad_requests(process)
        assert eventually(lambda: "Invalid session" in process.log)
        entries = [json.loads(line) for line in process.log.splitlines()]
        assert {"event", "level", "timestamp"} <= set.intersection(*(set(entry) for entry in entries))
        assert not [entry for entry in entries if entry["event"].startswith(FORGED[:30])]


@pytest.mark.slow
@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_the_query_of_a_websocket_is_not_logged(level: str, tmp_path: Path) -> None:
    secret = token("a")
    with forked_web(tmp_path, QM_API_KEYS=KEYS, QM_LOG_LEVEL=level) as process:
        with Listener(process.port, {"token": OPERATOR}, query=f"&token={secret}&key={OPERATOR}&%0ax") as client:
            assert client.call("join", "a") == {"joined": ["a"]}
        assert eventually(lambda: '"WebSocket /socket.io/" [accepted]' in process.log)
        assert process.get(f"/socket.io/?EIO=4&transport=polling&token={secret}").status == 200
        assert process.get(f"/schedule?key={OPERATOR}").status == 401
        assert log_in(process, UNKNOWN).status == 401
        assert eventually(lambda: "path=/login" in process.log)  # what was logged before it is there, too
        assert secret not in process.log
        assert OPERATOR not in process.log
