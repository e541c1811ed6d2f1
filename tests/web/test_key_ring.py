"""How long keys, sessions and connections last, and the file of keys, which is read when it changes."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from queue_manager.core.clock import local_now, seconds
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import Settings
from queue_manager.web.auth import authentication
from queue_manager.web.auth.authentication import Authenticator, KeyRing
from queue_manager.web.auth.revocation import REVOKED_SESSIONS_KEY, Revocations
from tests.real_servers import Servers
from tests.web.credentials import EXPIRED, EYE, HAND, KEYS, LONG_AGO, OPERATOR, UNKNOWN, VIEWER, rewrite


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of keys whose changes take effect at once."""
    monkeypatch.setattr(authentication, "FILE_CHECK_INTERVAL", 0.0)
    path = tmp_path / "keys.json"
    rewrite(path, EYE, HAND)
    return path


def test_an_expired_key_has_no_holder_also_for_its_sessions() -> None:
    keys = KeyRing(Settings(qm_api_keys=json.loads(KEYS)))
    assert keys.find(EXPIRED) is keys.named("old") is None
    hand = keys.find(OPERATOR)
    assert hand is not None
    assert keys.named("hand") == hand


def test_a_file_of_keys_is_read_once_after_each_change(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    keys = KeyRing(Settings(qm_api_keys_file=file))
    assert all(keys.find(VIEWER) for _ in range(3))
    assert caplog.text == ""
    file.write_text("[")
    assert all(keys.find(VIEWER) for _ in range(3))
    assert (caplog.text.count("The API keys are unchanged"), len(caplog.records)) == (1, 1)
    rewrite(file, HAND)
    assert not any(keys.find(VIEWER) for _ in range(3))
    assert (caplog.text.count("Keys read again"), len(caplog.records)) == (1, 2)


def test_a_key_of_a_file_for_an_unknown_system_is_refused(file: Path) -> None:
    rewrite(file, {**EYE, "systems": ["rooms"]})
    with pytest.raises(ConfigurationError, match="QM_API_KEYS_FILE: the key eye names the system 'rooms'"):
        KeyRing(Settings(qm_api_keys_file=file))


@pytest.mark.parametrize(
    "change",
    [{"name": "foot"}, {"role": "viewer"}, {"key": UNKNOWN}, {"systems": ["support-snooze"]}, {"expires": LONG_AGO}],
)
def test_connections_of_a_key_end_when_anything_about_it_changes(change: dict[str, object], file: Path) -> None:
    authenticator = Authenticator(Settings(qm_api_keys_file=file))
    changed, other = authenticator.key_holder(OPERATOR), authenticator.key_holder(VIEWER)
    assert authenticator.is_valid(changed)
    rewrite(file, EYE, {**HAND, **change})
    assert not authenticator.is_valid(changed)
    assert authenticator.is_valid(other)


def test_connections_of_a_session_end_with_it() -> None:
    authenticator = Authenticator(Settings(qm_api_keys=json.loads(KEYS)))
    session = replace(authenticator.key_holder(OPERATOR), by="session", session="1", expires_at=local_now())
    assert not authenticator.is_valid(session)
    assert authenticator.is_valid(replace(session, expires_at=local_now() + seconds(60)))


def test_a_log_out_is_kept_until_the_session_would_have_ended_also_on_a_full_server(clean: Servers) -> None:
    async def log_out() -> None:
        revocations = Revocations(clean.valkey.url)
        async with revocations.refreshing():
            await revocations.revoke("ended", time.time() - 60)
            await revocations.revoke("valid", time.time() + 60)

    with connect(clean.valkey.url) as client:
        client.config_set("maxmemory", 1)
        try:
            asyncio.run(log_out())
        finally:
            client.config_set("maxmemory", 0)
        assert client.zrange(REVOKED_SESSIONS_KEY, 0, -1) == ["valid"]
