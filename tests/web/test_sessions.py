"""Logging in and out, and keys that expire: at the next request, and on open connections."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import jwt
import pytest
import uvicorn
from uvicorn.middleware.proxy_headers import _TrustedHosts

from dev.servers import Valkey
from queue_manager.web.serve import _also_mapped
from tests.any_jobs import INVOICE, MODULE
from tests.eventually import eventually
from tests.pace import paced, promptly
from tests.real_servers import Servers
from tests.web.credentials import EYE, HAND, KEYS, OPERATOR, UNKNOWN, VIEWER, cookie, key, log_in, own_page, rewrite
from tests.web.listener import ConnectionRefused, Listener
from tests.web.queue_client import DATABASE, Queue, Stream, empty_queue, environment
from tests.web.web_process import SECRET, Answer, Web, forked_web, shared_web, token

STATUS = "/api/queue/status"
STREAMS = ("overview", "jobs", "queue")
HTML = {"Accept": "text/html,application/xhtml+xml"}
CUT_OFF = 2.0  # seconds
BRIEF = 6.0  # seconds; in which clients can connect also on a busy machine


@pytest.fixture
def queue(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return empty_queue(servers, tmp_path_factory, QM_API_KEYS=KEYS, QM_HOOKS="true", QM_JOBS="true")


@pytest.fixture
def guarded(queue: Queue) -> Web:
    return queue.web


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    rewrite(path, EYE, HAND)
    return path


@pytest.fixture
def filed(servers: Servers, tmp_path: Path, file: Path) -> Iterator[Web]:
    """A process whose keys are in a file."""
    url = servers.valkey.url.removesuffix("/0") + f"/{DATABASE}"
    jobs = {"QM_JOBS": "true", "JOBS_IMPORTS": json.dumps([MODULE])}
    with forked_web(tmp_path, **environment(url, QM_API_KEYS_FILE=str(file), **jobs)) as process:
        yield process


def soon(delay: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=delay)).isoformat()


# Logging in and out


def test_the_session_is_a_strict_cookie_for_twelve_hours(guarded: Web) -> None:
    answer = log_in(guarded, VIEWER)
    given = answer.headers["set-cookie"]
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert re.search(r"; HttpOnly; Max-Age=43200; Path=/; SameSite=strict$", given)
    claims = jwt.decode(SimpleCookie(given)["qm_session"].value, options={"verify_signature": False})
    assert (claims["name"], claims["role"]) == ("eye", "viewer")
    assert abs(claims["exp"] - time.time() - 43_200) < 10
    assert VIEWER not in given


def test_the_cookie_is_secure_behind_a_proxy_that_terminates_tls(guarded: Web) -> None:
    given = log_in(guarded, VIEWER, X_Forwarded_Proto="https").headers["set-cookie"]
    assert given.endswith("; Secure")


def test_a_wrong_key_does_not_log_in(guarded: Web) -> None:
    for wrong in (UNKNOWN, "", VIEWER + "0"):
        answer = log_in(guarded, wrong)
        assert (answer.status, answer.body["error"], answer.headers["set-cookie"]) == (401, "unauthorized", None)
    assert log_in(guarded, "0" * 5_000).status == 413


def test_a_form_of_another_site_does_not_log_in(guarded: Web) -> None:
    assert log_in(guarded, VIEWER, Sec_Fetch_Site="cross-site").status == 403
    assert log_in(guarded, VIEWER, Sec_Fetch_Site="same-site").status == 403
    assert log_in(guarded, VIEWER, Origin="https://evil.example").status == 403


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("qm", "http://qm", 303),
        ("qm:80", "http://qm", 303),  # nginx with `proxy_set_header Host $host:$server_port`
        ("qm:443", "https://qm", 303),
        ("qm:5001", "http://qm:5001", 303),
        ("[::1]:80", "http://[::1]", 303),
        ("qm:443", "http://qm", 403),
        ("qm:80", "https://qm", 403),
        ("qm:5001", "http://qm", 403),
        ("qm:80", "http://qm:5001", 403),
        ("qm:80", "http://evil", 403),
        ("qm:80", "null", 403),
        (":80", "http://:80", 403),
    ],
)
def test_a_browser_without_fetch_metadata_logs_in_from_the_same_host_and_port(
    host: str, origin: str, status: int, guarded: Web
) -> None:
    assert log_in(guarded, VIEWER, Host=host, Origin=origin).status == status


def test_logging_out_deletes_the_cookie(guarded: Web) -> None:
    answer = guarded.post("/logout", **own_page(guarded, VIEWER))
    assert (answer.status, answer.headers["location"]) == (303, "/login")
    assert re.match(r'qm_session=""; expires=.*; HttpOnly; Max-Age=0; Path=/', answer.headers["set-cookie"])


@pytest.mark.processes
@pytest.mark.usefixtures("clean")
def test_a_copied_cookie_is_refused_by_every_process_after_the_log_out(guarded: Web, tmp_path: Path) -> None:
    copied, other = own_page(guarded, OPERATOR), own_page(guarded, OPERATOR)
    with forked_web(tmp_path, QM_API_KEYS=KEYS) as second:
        assert second.get("/metrics", **copied).status == guarded.get("/metrics", **copied).status == 200
        assert guarded.post("/logout", **copied).status == 303
        assert guarded.get("/metrics", **copied).status == 401
        assert second.get("/metrics", **copied).status == 401
        assert second.get("/", **copied, **HTML).headers["location"] == "/login?next=%2F"
        assert guarded.post("/api/queue/message", '{"type": "a"}', **copied).status == 401
        # Nobody else is logged out, nor a later session of the same key.
        assert second.get("/metrics", **other).status == 200
        assert second.get("/metrics", **own_page(guarded, OPERATOR)).status == 200
    with forked_web(tmp_path, QM_API_KEYS=KEYS) as later:
        assert later.get("/metrics", **copied).status == 401
        assert later.get("/metrics", **other).status == 200


@pytest.mark.usefixtures("clean")
def test_another_spelling_of_a_logged_out_cookie_is_refused_too(guarded: Web) -> None:
    page = own_page(guarded, VIEWER)
    assert guarded.post("/logout", **page).status == 303
    session, last = page["Cookie"][:-1], page["Cookie"][-1]
    ends = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for end in (*ends, f"{last}="):  # PyJWT has accepted four of the letters, and still accepts the padding
        assert guarded.get("/api/schedule", **{**page, "Cookie": session + end}).status == 401


@pytest.mark.processes
@pytest.mark.usefixtures("clean")
def test_open_streams_are_closed_by_the_log_out(queue: Queue, tmp_path: Path) -> None:
    guarded, page = queue.web, own_page(queue.web, VIEWER)
    url = queue.redis_url
    with forked_web(tmp_path, **environment(url, QM_API_KEYS=KEYS)) as second:
        with (
            Stream(guarded, **page) as here,
            Stream(second, **page) as there,
            Stream(second, X_API_KEY=VIEWER) as by_key,
            Listener(second.port, host=f"127.0.0.1:{second.port}", **page) as client,
        ):
            assert {here.status, there.status, by_key.status} == {200}
            assert guarded.post("/logout", **page).status == 303
            assert is_ended(here)
            assert is_ended(there)
            client.wait_until_disconnected()
            queue.post("/queue/message", {"type": "a"}, X_API_KEY=OPERATOR)
            assert next(by_key.events())[0] == "queue-update"


@pytest.mark.processes
def test_without_redis_sessions_stay_valid_and_a_log_out_applies_to_this_process(
    tmp_path: Path, clean: Servers
) -> None:
    valkey = Valkey(tmp_path / "valkey")
    (tmp_path / "other").mkdir()
    env = {"REDIS_URL": valkey.url, "QM_API_KEYS": KEYS}
    with forked_web(tmp_path, **env) as first, forked_web(tmp_path / "other", **env) as second:
        leaving, staying = own_page(first, VIEWER), own_page(first, VIEWER)
        assert first.get("/schedule", **leaving).status == second.get("/schedule", **staying).status == 200
        assert first.post("/logout", **leaving).status == 303
        assert first.get("/schedule", **leaving).status == 401
        with valkey:  # what was logged out meanwhile is told to the others
            assert eventually(lambda: second.get("/schedule", **leaving).status == 401)
            assert second.get("/schedule", **staying).status == 200


def test_a_page_sends_people_to_the_login_and_back(guarded: Web) -> None:
    sent = guarded.get("/?account=a&account=b", **HTML)
    assert (sent.status, sent.headers["location"]) == (303, "/login?next=%2F%3Faccount%3Da%26account%3Db")
    form = guarded.get(sent.headers["location"], **HTML)
    assert guarded.get("/", X_API_KEY=UNKNOWN, **HTML).status == 401
    assert 'name="next" type="hidden" value="/?account=a&amp;account=b"' in form.text
    back = guarded.post("/login", f"key={VIEWER}&next=%2F%3Faccount%3Da%26account%3Db", **HTML)
    assert (back.status, back.headers["location"]) == (303, "/?account=a&account=b")


@pytest.mark.parametrize("path", ["/jobs/a%20b%C3%A4", "/jobs/a%3Fb%23c", "/jobs/100%25"])
def test_a_page_of_an_odd_id_is_shown_after_the_login(path: str, guarded: Web) -> None:
    sent = guarded.get(path, **HTML).headers["location"]
    assert sent == f"/login?next={quote(path, safe='')}"
    assert guarded.post("/login", f"key={VIEWER}&{sent.removeprefix('/login?')}").headers["location"] == path


@pytest.mark.parametrize(
    "path", ["//evil.example", "https://evil.example", r"/\evil.example", "/%0d%0aX:y", "evil", ""]
)
def test_the_login_redirects_only_within_this_site(path: str, guarded: Web) -> None:
    assert guarded.post("/login", f"key={VIEWER}&next={path}").headers["location"] == "/"


def test_the_login_page_has_strict_headers_and_shows_errors(guarded: Web) -> None:
    page = guarded.get("/login", **HTML)
    wrong = guarded.post("/login", "key=%3Cscript%3E", **HTML)
    assert (page.status, wrong.status) == (200, 401)
    for shown in (page, wrong):
        assert "form-action 'self'" in shown.headers["content-security-policy"]
        assert shown.headers["referrer-policy"] == "same-origin"  # else browsers say that its form is from nowhere
        assert shown.headers["cache-control"] == "no-store"
        text = shown.text.replace('<script src="/static/theme.js"></script>', "", 1)
        assert not re.search(r"<script|\son\w+=|style=|<style|https?://", text)
        assert '<label for="key">' in shown.text
    assert '<p id="problem" class="field-problem" role="alert">The key is unknown or has expired</p>' in wrong.text
    assert 'aria-invalid="true" aria-describedby="problem"' in wrong.text


def test_without_keys_there_is_no_log_in(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> None:
    process = shared_web(tmp_path_factory)
    assert process.get("/login").headers["location"] == "/"
    assert log_in(process, VIEWER).headers["location"] == "/"


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "a.b.c",
        jwt.encode({"name": "hand", "role": "operator", "exp": 2**40}, "", algorithm="none"),
        jwt.encode({"name": "hand", "role": "operator", "exp": 2**33}, "0" * 32, algorithm="HS256"),
        jwt.encode({"name": ["hand"]}, "0" * 32, algorithm="HS256"),
        jwt.encode({"name": "nobody", "role": "operator", "exp": 2**33}, "0" * 32, algorithm="HS256"),
        f"e30.{urlsafe_b64encode(b'[' * 9_999).decode()}.AA",
    ],
)
def test_a_made_up_session_is_refused(text: str, guarded: Web) -> None:
    answer = guarded.get(STATUS, Cookie=f"qm_session={text}", Sec_Fetch_Site="same-origin")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")


OLD = "qm_session=a.b.c"  # by a process with another path prefix or other keys


@pytest.mark.parametrize(("before", "after"), [((), (OLD,)), ((OLD,), ()), ((OLD,) * 3, (OLD,))])
def test_a_session_is_valid_next_to_cookies_of_other_paths(
    before: tuple[str, ...], after: tuple[str, ...], guarded: Web
) -> None:
    cookies = "; ".join([*before, cookie(guarded, VIEWER), *after])
    assert guarded.get(STATUS, Cookie=cookies).status == 200


@pytest.mark.usefixtures("clean")
def test_a_session_is_valid_next_to_one_that_was_logged_out(guarded: Web) -> None:
    ended = own_page(guarded, VIEWER)
    assert guarded.post("/logout", **ended).status == 303
    session = cookie(guarded, VIEWER)
    for cookies in (f"{session}; {ended['Cookie']}", f"{ended['Cookie']}; {session}"):
        assert guarded.get(STATUS, Cookie=cookies).status == 200


@pytest.mark.usefixtures("clean")
def test_logging_out_ends_the_sessions_of_all_paths(guarded: Web) -> None:
    sessions = [cookie(guarded, VIEWER), cookie(guarded, OPERATOR)]
    assert guarded.post("/logout", Cookie="; ".join([*sessions, OLD]), Sec_Fetch_Site="same-origin").status == 303
    for session in sessions:
        assert guarded.get(STATUS, Cookie=session).status == 401


def test_a_key_takes_precedence_over_a_session(guarded: Web) -> None:
    page = own_page(guarded, OPERATOR)
    assert guarded.get(STATUS, **page, X_API_KEY=UNKNOWN).status == 401
    assert guarded.get("/api/queue/message", **page, X_API_KEY=VIEWER).status == 403


def test_few_session_cookies_of_a_request_are_checked(guarded: Web) -> None:
    assert guarded.get(STATUS, Cookie=f"{OLD}; " * 4 + cookie(guarded, VIEWER)).status == 401


@pytest.mark.parametrize("others", ['a={"b": "c, d"}; ', "nonsense; ", '"; ', "a=\xe9; "])
def test_cookies_of_other_programs_on_this_host_are_ignored(others: str, guarded: Web) -> None:
    session = cookie(guarded, VIEWER)
    assert guarded.get(STATUS, Cookie=f"{others}{session}; z=1").status == 200


@pytest.mark.parametrize("shown", ["\xe9" * 40, "", " ", "x" * 30_000])
def test_malformed_keys_are_unknown(shown: str, guarded: Web) -> None:
    assert guarded.get(STATUS, X_API_KEY=shown).status == 401
    assert guarded.get(STATUS, Authorization=f"Bearer {shown}").status == 401


@pytest.mark.processes
@pytest.mark.usefixtures("clean")  # it reads by indexes
def test_another_process_with_the_keys_knows_the_session(guarded: Web, tmp_path: Path) -> None:
    with forked_web(tmp_path, QM_API_KEYS=KEYS) as other:
        assert other.get("/metrics", **own_page(guarded, VIEWER)).status == 200


# Keys that end


def refused_within(limit: float, ask: Callable[[], Answer]) -> bool:
    with promptly(limit):
        return bool(eventually(lambda: ask().status == 401))


@pytest.mark.processes
def test_a_key_removed_from_the_file_is_refused_with_its_session(filed: Web, file: Path) -> None:
    session = own_page(filed, VIEWER)
    other = own_page(filed, OPERATOR)
    assert filed.get(STATUS, **session).status == filed.get(STATUS, X_API_KEY=VIEWER).status == 200
    rewrite(file, HAND)
    assert refused_within(CUT_OFF, lambda: filed.get(STATUS, **session))
    assert filed.get(STATUS, X_API_KEY=VIEWER).status == 401
    assert filed.get(STATUS, **other).status == 200  # nobody else is logged out


@pytest.mark.processes
def test_a_changed_key_or_role_ends_the_session(filed: Web, file: Path) -> None:
    session = own_page(filed, OPERATOR)
    rewrite(file, EYE, {**HAND, "role": "viewer"})
    assert refused_within(CUT_OFF, lambda: filed.get(STATUS, **session))
    session = own_page(filed, OPERATOR)
    rewrite(file, EYE, {**HAND, "key": UNKNOWN})
    assert refused_within(CUT_OFF, lambda: filed.get(STATUS, **session))
    assert filed.get(STATUS, X_API_KEY=UNKNOWN).status == 200


@pytest.mark.processes
def test_an_invalid_file_of_keys_is_reported_and_ignored(filed: Web, file: Path) -> None:
    file.write_text(f'[{{"key": "{VIEWER}"')
    assert eventually(
        lambda: filed.get(STATUS, X_API_KEY=VIEWER).status == 200 and "The API keys are unchanged" in filed.log
    )
    file.unlink()
    assert eventually(lambda: filed.get(STATUS, X_API_KEY=VIEWER).status == 200 and "cannot be read" in filed.log)
    assert VIEWER not in filed.log
    rewrite(file)  # an empty list locks everybody out
    assert refused_within(CUT_OFF, lambda: filed.get(STATUS, X_API_KEY=VIEWER))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"QM_API_KEYS_FILE": "missing.json"}, "QM_API_KEYS_FILE='missing.json': must be a readable file"),
        ({"QM_API_KEYS_FILE": "keys.json", "QM_API_KEYS": KEYS}, "must not be set together with QM_API_KEYS"),
        ({"QM_API_KEYS": '[{"name": "a", "key": "short-s3cret", "role": "viewer"}]'}, "[0].key: 32 to 512"),
    ],
)
def test_wrong_keys_stop_the_start_in_one_line(env: dict[str, str], said: str, tmp_path: Path, file: Path) -> None:
    with forked_web(tmp_path, **env) as process:
        assert eventually(process.child.poll) == 2
    assert said in process.log
    assert process.log.count("\n") == 1
    assert "s3cret" not in process.log


@pytest.mark.processes
@pytest.mark.usefixtures("clean")  # it reads by indexes
def test_with_keys_any_address_and_host_name_is_allowed(tmp_path: Path) -> None:
    with forked_web(tmp_path, "--host", "0.0.0.0", QM_API_KEYS=KEYS) as process:
        assert process.get("/metrics", Host="queue-manager.example", X_API_KEY=VIEWER).status == 200
        assert process.get("/metrics", Host="queue-manager.example").status == 401


@pytest.mark.parametrize(
    ("given", "trusted", "untrusted"),
    [
        (None, ("127.0.0.1", "::1", "::ffff:127.0.0.1"), ("10.0.0.1", "::ffff:10.0.0.1")),
        (
            "10.0.0.0/8, 192.0.2.1",
            ("10.1.2.3", "::ffff:10.1.2.3", "::ffff:192.0.2.1"),
            ("127.0.0.1", "::ffff:11.0.0.1"),
        ),
        ("*", ("10.0.0.1", "::ffff:10.0.0.1", "::1"), ()),
    ],
    ids=["default", "networks", "all"],
)
def test_trusted_proxies_are_recognized_on_sockets_of_both_protocols(
    given: str | None, trusted: Sequence[str], untrusted: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    if given is not None:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", given)
    hosts = _TrustedHosts(_also_mapped(uvicorn.Config("app").forwarded_allow_ips))
    assert all(one in hosts for one in trusted)
    assert not any(one in hosts for one in untrusted)


@pytest.mark.processes
@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
@pytest.mark.usefixtures("servers")
def test_a_proxy_over_ipv4_is_trusted_by_a_process_that_listens_on_both_protocols(tmp_path: Path) -> None:
    with forked_web(tmp_path, "--host", "::", QM_API_KEYS=KEYS) as process:
        assert log_in(process, VIEWER, X_Forwarded_Proto="https").headers["set-cookie"].endswith("; Secure")


@pytest.mark.usefixtures("clean")  # it reads by indexes
def test_prometheus_reads_metrics_as_a_viewer(guarded: Web) -> None:
    assert guarded.get("/metrics", Authorization=f"Bearer {VIEWER}").status == 200


# Those who stay connected


def is_ended(stream: Stream) -> bool:
    for _ in stream.events():
        pass
    return True


@pytest.mark.processes
@pytest.mark.smoke
@pytest.mark.usefixtures("clean")
def test_event_streams_are_closed_when_their_key_is_removed(filed: Web, file: Path) -> None:
    session = own_page(filed, VIEWER)
    with ExitStack() as stack:

        def open_streams(**headers: str) -> list[Stream]:
            streams = [stack.enter_context(Stream(filed, f"/api/{path}/events", **headers)) for path in STREAMS]
            assert [stream.status for stream in streams] == [200] * len(STREAMS)
            return streams

        viewers = [*open_streams(X_API_KEY=VIEWER), *open_streams(**session)]
        overview, jobs, messages = open_streams(X_API_KEY=OPERATOR)
        for path in STREAMS:
            with Stream(filed, f"/api/{path}/events") as refused:
                assert refused.status == 401
        with promptly(CUT_OFF):
            rewrite(file, HAND)
            assert all(map(is_ended, viewers))
        filed.post("/api/jobs", {"name": INVOICE}, X_API_KEY=OPERATOR)
        Queue(filed, "").post("/queue/message", {"type": "a"}, X_API_KEY=OPERATOR)
        for stream, name in ((overview, "overview"), (jobs, "job-update"), (messages, "queue-update")):
            assert next(stream.events())[0] == name


@pytest.mark.processes
def test_an_event_stream_is_closed_when_its_key_expires(filed: Web, file: Path) -> None:
    ends_at = time.monotonic() + BRIEF
    with paced() as pace:
        rewrite(file, HAND, key("brief", UNKNOWN, "viewer", soon(BRIEF)))
        assert eventually(lambda: filed.get(STATUS, X_API_KEY=UNKNOWN).status == 200)
        session = own_page(filed, UNKNOWN)
        with Stream(filed, X_API_KEY=UNKNOWN) as by_key, Stream(filed, **session) as by_session:
            assert (by_key.status, by_session.status) == (200, 200)
            assert all(map(is_ended, (by_key, by_session)))
    assert 0 <= time.monotonic() - ends_at < pace.allowed(CUT_OFF)
    assert filed.get(STATUS, **session).status == 401


@pytest.mark.processes
def test_a_waiting_consumer_gets_no_message_after_its_key_is_removed(filed: Web, file: Path) -> None:
    answers: list[Answer] = []
    queue = Queue(filed, "")
    waiting = Thread(target=lambda: answers.append(queue.get("/queue/message?type=z&timeout=20", X_API_KEY=OPERATOR)))
    waiting.start()
    assert eventually(lambda: filed.get(STATUS, X_API_KEY=VIEWER).status == 200)
    with promptly(CUT_OFF):
        rewrite(file, EYE)
        waiting.join()
    assert answers[0].status == 404


@pytest.mark.processes
def test_socket_io_requires_the_same_keys(filed: Web, file: Path) -> None:
    session = own_page(filed, VIEWER)
    origin = f"http://127.0.0.1:{filed.port}"
    for auth, headers in (
        ({"token": VIEWER}, {}),
        (None, {"X_API_KEY": VIEWER}),
        (None, {"Authorization": f"Bearer {OPERATOR}"}),
        (None, {"Cookie": session["Cookie"], "Origin": origin}),
        (None, session),
    ):
        with Listener(filed.port, auth, host=f"127.0.0.1:{filed.port}", **headers) as client:
            assert client.call("join", "any") == {"joined": ["any"]}
    for auth, headers, said in (
        (None, {}, "Send a key"),
        ({"token": UNKNOWN}, {}, "unknown or has expired"),
        ({"token": ""}, {}, "unknown or has expired"),
        (None, {"X_API_KEY": UNKNOWN}, "unknown or has expired"),
        (None, {"Cookie": session["Cookie"]}, "Send a key"),
        (None, {"Cookie": session["Cookie"], "Origin": "http://127.0.0.1:1"}, "Send a key"),
        (None, {"Cookie": session["Cookie"], "Sec_Fetch_Site": "same-site"}, "Send a key"),
    ):
        with pytest.raises(ConnectionRefused, match=said):
            Listener(filed.port, auth, host=f"127.0.0.1:{filed.port}", **headers)


@pytest.mark.processes
def test_a_socket_io_client_is_disconnected_when_its_key_is_removed(filed: Web, file: Path) -> None:
    session = own_page(filed, VIEWER)
    with (
        Listener(filed.port, {"token": VIEWER}) as by_key,
        Listener(filed.port, **session) as by_session,
        Listener(filed.port, {"token": OPERATOR}) as other,
    ):
        with promptly(CUT_OFF):
            rewrite(file, HAND)
            by_key.wait_until_disconnected()
            by_session.wait_until_disconnected()
        assert other.call("join", "a") == {"joined": ["a"]}


@pytest.mark.processes
def test_a_socket_io_client_is_disconnected_when_its_key_expires(filed: Web, file: Path) -> None:
    ends_at = time.monotonic() + BRIEF
    with paced() as pace:
        rewrite(file, key("brief", UNKNOWN, "viewer", soon(BRIEF)))
        assert eventually(lambda: filed.get(STATUS, X_API_KEY=UNKNOWN).status == 200)
        with Listener(filed.port, {"token": UNKNOWN}) as client:
            client.wait_until_disconnected()
    assert 0 <= time.monotonic() - ends_at < pace.allowed(CUT_OFF)


def test_account_tokens_work_alongside_keys(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> None:
    both = shared_web(tmp_path_factory, SOCKETIO_TOKEN_SECRET=SECRET, QM_API_KEYS=KEYS)
    with Listener(both.port, {"token": token("a")}) as client:
        assert client.call("join", "b")["error"] == "refused"
    with Listener(both.port, {"token": VIEWER}) as client:
        assert client.call("join", "b") == {"joined": ["b"]}
    for refused in (UNKNOWN, token("a", exp=1)):  # a client that sent a key is told about the key, not only about a JWT
        with pytest.raises(ConnectionRefused, match=r"The key is unknown or has expired; The token is refused: "):
            Listener(both.port, {"token": refused})


# The journal


def lines(process: Web) -> list[str]:
    return [line for line in process.log.splitlines() if "Change requested" in line]


@pytest.mark.processes
def test_every_action_is_audited_with_actor_action_and_result(servers: Servers, tmp_path: Path) -> None:
    url = servers.valkey.url.removesuffix("/0") + f"/{DATABASE}"
    with forked_web(tmp_path, **environment(url, QM_API_KEYS=KEYS)) as process:
        queue = Queue(process, url)
        queue.post("/queue/message", {"type": "a"}, X_API_KEY=OPERATOR)
        queue.post("/queue/message", {"type": "a"}, X_API_KEY=VIEWER)
        queue.post("/queue/message", {"type": "a"})
        queue.get("/queue/message?type=none-of-this", X_API_KEY=OPERATOR)
        queue.get("/queue/status", X_API_KEY=OPERATOR)
        queue.post("/queue/message/%20who/nack", {}, **own_page(process, OPERATOR))
        log_in(process, UNKNOWN)
        assert eventually(lambda: len(lines(process)) == 6)
        noted = [tuple(re.findall(r"(?:method|path|status|who)=(\S+)", line)) for line in lines(process)]
        written = process.log
    assert noted == [
        ("POST", "/api/queue/message", "201", "hand"),
        ("POST", "/api/queue/message", "403", "eye"),
        ("POST", "/api/queue/message", "401", "nobody"),
        ("POST", "/login", "303", "hand"),
        ("POST", "/api/queue/message/%20who/nack", "400", "hand"),
        ("POST", "/login", "401", "nobody"),
    ]
    assert not any(secret in written for secret in (VIEWER, OPERATOR, UNKNOWN, "qm_session"))


@pytest.mark.processes
def test_repeated_actions_share_a_line_with_their_number(servers: Servers, tmp_path: Path) -> None:
    url = servers.valkey.url.removesuffix("/0") + f"/{DATABASE}"
    with forked_web(tmp_path, **environment(url, QM_API_KEYS=KEYS)) as process:
        queue = Queue(process, url)

        def number_of_actions() -> int:
            """Count the lines, and the repetitions that they name."""
            counts = [re.search(r"repetitions=(\d+)", line) for line in lines(process)]
            return sum(int(count[1]) if count else 1 for count in counts)

        for _ in range(40):
            assert queue.post("/queue/message", {"type": "a"}, X_API_KEY=OPERATOR).status == 201
        assert eventually(lambda: number_of_actions() == 40)
        assert len(lines(process)) < 40

        for _ in range(2):
            queue.post("/queue/message", {"type": "a"}, X_API_KEY=OPERATOR)
        os.kill(process.child.pid, signal.SIGTERM)
        assert process.child.wait(30) == 0
        assert number_of_actions() == 42  # also those of the last second


@pytest.mark.processes
def test_the_path_of_an_action_is_logged_up_to_a_length(servers: Servers, tmp_path: Path) -> None:
    with forked_web(tmp_path, **environment(servers.valkey.url, QM_API_KEYS=KEYS)) as process:
        assert process.post(f"/api/queue/message/{'x' * 5_000}/nack", {}).status == 401
        (line,) = eventually(lambda: lines(process))
    assert re.findall(r"path=(\S+)", line) == [f"/api/queue/message/{'x' * 5_000}"[:1024]]


@pytest.mark.processes
def test_without_keys_actions_are_logged_as_loopback(servers: Servers, tmp_path: Path) -> None:
    url = servers.valkey.url.removesuffix("/0") + f"/{DATABASE}"
    with forked_web(tmp_path, **environment(url)) as process:
        Queue(process, url).post("/queue/message", {"type": "a"})
        assert eventually(lambda: "who=loopback" in process.log)
