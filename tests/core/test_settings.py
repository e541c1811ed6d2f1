"""Settings: wrong values are named with what is accepted, unclear flags are off, secrets stay secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import Settings, masked, settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # no .env of the checkout
    settings.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def read_again_afterwards() -> object:
    yield
    settings.cache_clear()


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("MONGO_DB_URL", "postgres://db/product", "mongodb:// URL whose path names the database"),
        ("MONGO_DB_URL", "mongodb://db:27017", "mongodb:// URL whose path names the database"),
        ("MONGO_DB_URL", "mongodb://db/product?w=1", "w=majority"),
        ("MONGO_DB_URL", "mongodb+srv://db/product?replicaSet=qm&w=0", "w=majority"),
        ("MONGO_DB_URL", "mongodb://db/product?journal=false", "journal=true"),
        ("MONGO_DB_URL", "mongodb://db/product?readPreference=secondaryPreferred", "readPreference=primary"),
        ("REDIS_URL", "http://cache", "redis:// or rediss:// URL"),
        ("REDIS_URL", "redis://cache/zero", "redis:// or rediss:// URL"),
        ("QM_LEASE_SECONDS", "soon", "valid number"),
        ("QM_LEASE_SECONDS", "-1", "greater than or equal to 2"),
        ("QM_CLAIM_BATCH", "1.5", "valid integer"),
        ("QM_LOG_LEVEL", "LOUD", "'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
        ("QM_LOG_FORMAT", "xml", "'console' or 'json'"),
    ],
)
def test_wrong_value_names_the_setting_the_value_and_what_is_accepted(
    name: str, value: str, accepted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as error:
        settings()
    assert str(error.value).startswith(f"{name}={value!r}: accepted is ")
    assert accepted in str(error.value)


@pytest.mark.parametrize("option", ["readConcernLevel=local", "readpreference=nearest", "tls=true;w=1", "W=2"])
def test_an_option_that_weakens_the_guarantees_is_refused(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGO_DB_URL", f"mongodb://db/product?{option}")
    with pytest.raises(ConfigurationError, match=r"^MONGO_DB_URL=.*accepted is .*weakens the guarantees$"):
        settings()


def test_options_that_weaken_nothing_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "mongodb://db/product?replicaSet=qm&w=majority&journal=true&readPreference=primary&readConcernLevel=majority"
    monkeypatch.setenv("MONGO_DB_URL", url)
    assert settings().mongo_db_url == url


def test_every_wrong_value_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QM_LEASE_SECONDS", "soon")
    monkeypatch.setenv("QM_CLAIM_BATCH", "many")
    with pytest.raises(ConfigurationError, match=r"QM_LEASE_SECONDS=(.|\n)*QM_CLAIM_BATCH="):
        settings()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mongodb://app:s3cret@db:27017", "mongodb://***@db:27017"),
        ("mongodb://app:s3cret/with/slashes@db", "mongodb://***@db"),
        ("mongodb://app:s3cret@with@at@a,b:27017/x", "mongodb://***@a,b:27017/x"),
        ("mongodb://me@corp.com:s3cret@db/x", "mongodb://***@db/x"),
        (
            "mongodb://db/x?replicaSet=qm&tlsCertificateKeyFilePassword=s3cret",
            "mongodb://db/x?replicaSet=qm&tlsCertificateKeyFilePassword=***",
        ),
        ("redis://:s3cret@cache:6379/0", "redis://***@cache:6379/0"),
        ("redis://:hun s3cret@cache/0", "redis://***@cache/0"),
        ("redis://cache/0?password=s3cret", "redis://cache/0?password=***"),
        ("redis://cache:6379/0", "redis://cache:6379/0"),
        ("redis://cache:s3cret/0", "redis://cache:***/0"),
        ("me:s3cret@host/db", "***"),
        ("cache:6379:s3cret", "***"),
    ],
)
def test_nothing_secret_of_a_url_is_shown(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("REDIS_URL", "redis://u:s3cret#x@h/0"),
        ("REDIS_URL", "redis://:s3cret?x@h/0"),
        ("REDIS_URL", "redis://h:s3cret/0"),
        ("REDIS_URL", "redis://u:s3/cret@h/0"),
        ("REDIS_URL", "redis://h:99999/0"),
        ("REDIS_URL", "redis://h/0?password=s3cret"),
        ("REDIS_URL", ":s3cret@h"),
        ("MONGO_DB_URL", "mongodb://u:s3cret@x@h/db"),
        ("MONGO_DB_URL", "mongodb://u:s3cret/x@h/db"),
        ("MONGO_DB_URL", "mongodb://h:s3cret/db"),
        ("MONGO_DB_URL", "mongodb://h:99999/db"),
        ("MONGO_DB_URL", "me:s3cret@h/db"),
    ],
)
def test_unreadable_url_is_refused_without_its_password(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, url)
    with pytest.raises(ConfigurationError) as error:
        settings()
    assert str(error.value).startswith(f"{name}=")
    assert "s3cret" not in str(error.value)


def test_wrong_url_is_shown_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "http://app:s3cret@cache")
    with pytest.raises(ConfigurationError) as error:
        settings()
    assert "s3cret" not in str(error.value)


def test_flag_that_is_neither_true_nor_false_is_off_with_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QM_CONVERSATIONS", "yes")
    assert settings().qm_conversations is False
    assert "QM_CONVERSATIONS='yes' is neither true nor false: it counts as false" in settings().remarks()


def test_no_flag_switched_on_is_one_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QM_CONVERSATIONS")
    (remark,) = settings().remarks()
    assert remark == (
        "no system is switched on, so no scan will run: "
        "set QM_CONVERSATIONS or QM_PROJECTS or QM_SITES_FIX_STALE_THUMBNAILS or QM_MESSAGE_QUEUE or QM_JOBS to true"
    )


def test_misspelt_name_is_remarked_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QM_LEASE_SECOND", "5")
    assert settings().remarks() == ["QM_LEASE_SECOND is not a setting; did you mean QM_LEASE_SECONDS?"]


def test_node_env_is_an_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APP_ENV")
    monkeypatch.setenv("NODE_ENV", "development")
    assert settings().app_env == "development"


@pytest.mark.parametrize(
    ("environment", "runs", "said"),
    [
        ({}, False, "APP_ENV is not set"),
        ({"APP_ENV": ""}, False, "APP_ENV is not set"),
        ({"APP_ENV": "staging"}, False, "APP_ENV='staging'"),
        ({"APP_ENV": "production"}, True, None),
        ({"NODE_ENV": "production"}, True, None),
    ],
)
def test_jobs_for_production_only_need_the_environment_to_say_so(
    environment: dict[str, str], runs: bool, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("APP_ENV")
    for name, value in {"QM_JOBS": "true", "JOBS_PRODUCTION_ONLY": "true", **environment}.items():
        monkeypatch.setenv(name, value)
    assert settings().runs_jobs is runs
    remarks = [] if said is None else [f"JOBS_PRODUCTION_ONLY=true and {said}: no jobs run here"]
    assert settings().remarks() == remarks


def test_env_file_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("QM_LEASE_SECONDS=7\n")
    assert settings().qm_lease_seconds == 7


def test_env_file_is_looked_through_for_unclear_flags_and_misspelt_names(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("QM_LEASE_SECOND=7\nQM_MAX_QUEU=1\n")
    assert [remark.partition(" ")[0] for remark in settings().remarks()] == ["QM_LEASE_SECOND", "QM_MAX_QUEU"]


def written(default: object) -> str:
    if default is None:
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


def test_env_example_and_readme_name_every_setting_with_its_default() -> None:
    example, readme = (ROOT / ".env.example").read_text(), (ROOT / "README.md").read_text()
    defaults = dict(re.findall(r"^#?\s?([A-Z_]+)=(\S*)", example, flags=re.MULTILINE))
    for name, field in Settings.model_fields.items():
        assert defaults[name.upper()] == written(field.default)
        assert f"`{name.upper()}`" in readme
