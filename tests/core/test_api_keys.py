"""Keys of the settings: read strictly, and never shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import settings

SECRET = "s3cret-0123456789-0123456789-0123456789"
GOOD = {"name": "billing", "key": SECRET, "role": "viewer"}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    settings.cache_clear()
    yield
    settings.cache_clear()


def refusal(value: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("QM_API_KEYS", value)
    with pytest.raises(ConfigurationError) as error:
        settings()
    return str(error.value)


@pytest.mark.parametrize("end", ["2027-01-31T01:00:00+01:00", "20270131T000000Z", "2027-01-31T00Z"])
def test_a_key_has_a_name_a_role_and_an_end(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QM_API_KEYS", json.dumps([{**GOOD, "expires": end}]))
    (key,) = settings().qm_api_keys
    assert (key.name, key.role, key.expires_at) == ("billing", "viewer", datetime(2027, 1, 31, tzinfo=UTC))
    assert key.key.get_secret_value() == SECRET
    assert not key.is_expired(datetime(2027, 1, 30, 23, 59, 59, 999_999, tzinfo=UTC))
    assert key.is_expired(datetime(2027, 1, 31, tzinfo=UTC))


def test_no_repr_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QM_API_KEYS", json.dumps([GOOD]))
    assert "s3cret" not in repr(settings()) + str(settings().qm_api_keys)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**GOOD, "key": "s3cret"}, "[0].key: 32 to 512 visible ASCII characters"),
        ({**GOOD, "key": f"{SECRET} and a space"}, "[0].key: 32 to 512 visible ASCII characters"),
        ({**GOOD, "key": 5}, "[0].key"),
        ({**GOOD, "key": "o" * 40}, "[0].key: 32 to 512 visible ASCII characters, with at least 6 different ones"),
        ({**GOOD, "key": "s3cre" * 8}, "[0].key: 32 to 512 visible ASCII characters, with at least 6 different ones"),
        ({**GOOD, "role": "s3cret"}, "[0].role: viewer or operator"),
        ({**GOOD, "role": ["viewer"]}, "[0].role"),
        ({**GOOD, "name": "s3cret s3cret"}, "[0].name: 1 to 64"),
        ({**GOOD, "expires": "s3cret"}, "[0].expires: an ISO 8601 time with a time zone"),
        ({**GOOD, "expires": "2027-01-31"}, "[0].expires: an ISO 8601 time with a time zone"),
        ({**GOOD, "expires": "1700000000"}, "[0].expires: an ISO 8601 time with a time zone"),
        ({**GOOD, "expires": "9999-12-31T23:59:59-10:00"}, "[0].expires: an ISO 8601 time with a time zone"),
        ({**GOOD, "systems": "s3cret"}, "[0].systems: a list of the names of systems"),
        ({**GOOD, "systems": []}, "[0].systems: a list of the names of systems"),
        ({**GOOD, "systems": [5]}, "[0].systems: a list of the names of systems"),
        ({**GOOD, "expire": "2027-01-31T00:00:00Z"}, "[0] has an unknown member"),
        ({**GOOD, SECRET: 1}, "[0] has an unknown member"),
        (SECRET, "[0] must be an object"),
    ],
)
def test_a_wrong_key_is_refused_with_its_position_but_not_shown(
    given: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = refusal(json.dumps([given]), monkeypatch)
    assert message.startswith('QM_API_KEYS: must be a JSON list of {"name", "key"')
    assert said in message
    assert "s3cret" not in message


@pytest.mark.parametrize("value", [SECRET, f'{{"key": "{SECRET}"}}', f'[{{"key": "{SECRET}"', "[" * 100_000])
def test_a_value_that_is_not_a_list_is_refused_without_being_shown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    message = refusal(value, monkeypatch)
    assert message.startswith("QM_API_KEYS: must be a JSON list")
    assert "s3cret" not in message
    assert len(message) < 200


@pytest.mark.parametrize(("member", "value"), [("name", "other"), ("key", SECRET[::-1])])
def test_names_and_keys_are_unique(member: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    message = refusal(json.dumps([GOOD, {**GOOD, member: value}]), monkeypatch)
    other = "key" if member == "name" else "name"
    assert message.endswith(f"; [1].{other}: must be unique")
