"""Settings: each wrong value is one line that says what it must be; secrets stay secret."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, get_origin

import pytest
from kombu import Connection

from queue_manager.broker.options import kombu_url
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.redis_url import is_encrypted, parse_redis_url
from queue_manager.core.settings import Settings, redact_url, settings

ROOT = Path(__file__).parents[2]
FLAGS = [name.upper() for name, field in Settings.model_fields.items() if field.annotation is bool]
NUMBERS = (int, int | None, float, float | None)
LISTS = [name.upper() for name, field in Settings.model_fields.items() if field.annotation == list[str]]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # where some of them write a .env
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
        ("REDIS_URL", "http://cache", "redis://, rediss://, unix:// or sentinel:// URL"),
        ("REDIS_URL", "redis://cache/zero", "redis:// URL such as redis://cache:6379/0, without options"),
        ("REDIS_URL", "redis://a,b/0", "redis:// URL such as redis://cache:6379/0"),
        ("REDIS_URL", "redis://cache/0?db=1", "without options"),
        ("REDIS_URL", "rediss://cache/0?db=1", "options than ssl_ca_certs, ssl_certfile, ssl_keyfile"),
        ("REDIS_URL", "rediss://cache/0?ssl_ca_certs=/no/ca.pem", "ssl_ca_certs is the path of a readable file"),
        ("REDIS_URL", f"rediss://cache/0?ssl_keyfile={__file__}", "ssl_certfile if it has ssl_keyfile"),
        ("REDIS_URL", "unix://?db=0", "unix:// URL such as unix:///run/redis/redis.sock?db=0"),
        ("REDIS_URL", "unix://run/redis.sock", "unix:// URL such as unix:///run/redis/redis.sock?db=0"),
        ("REDIS_URL", "unix:///run/redis.sock?db=zero", "unix:// URL such as"),
        ("QM_QUEUE_REDIS_URL", "sentinel://a,:26379/0", "sentinel://a:26379,b:26379/0?master_name=mymaster"),
        ("REDIS_URL", "cluster://a:6379/0", "only the message queue can be on a Redis Cluster"),
        ("BROKER_URL", "cluster://a:6379/0", "only the message queue can be on a Redis Cluster"),
        ("QM_QUEUE_REDIS_URL", "cluster://a:6379/1", "cluster://a:6379,b:6379/0"),
        ("QM_QUEUE_REDIS_URL", "sentinel://a/0?db=1", "no other options than master_name, sentinel_username"),
        ("BROKER_URL", "sqs://queue", "sentinel:// URL, or an amqp:// or amqps:// URL"),
        ("BROKER_URL", "redis://cache/zero", "redis:// URL such as redis://cache:6379/0"),
        ("BROKER_URL", "amqp://", "amqp:// or amqps:// URL"),
        ("BROKER_URL", "amqp://h//#fragment", "without options"),
        ("REDIS_URL", "redis://cache/0#1", "without options"),
        ("BROKER_URL", "sentinel://a/1;sentinel://b/2", "sentinel:// URL such as sentinel://a:26379,b:26379/0"),
        ("MONGO_DB_URL", "mongodb://db/product?tls=true&tlsCAFile=/no/ca.pem", "tlsCAFile is the path of a readable"),
        ("MONGO_DB_URL", "mongodb+srv://db/product?tlsCAFile=/no/ca.pem", "tlsCAFile is the path of a readable"),
        ("QUEUE_NAME", "mail_p1", "does not end in _p and a number"),
        ("QUEUE_NAME", "{mail_p1}", "does not end in _p and a number"),
        ("QM_LEASE_SECONDS", "soon", "a number from 2 to 3600"),
        ("QM_LEASE_SECONDS", "-1", "a number from 2 to 3600"),
        ("QM_CLAIM_BATCH", "1.5", "a whole number from 1 to 10000"),
        ("SOCKETIO_ADAPTER", "python,node", "one or more of python, redis and redis-streams"),
        ("SOCKETIO_ADAPTER", "[]", "one or more of python, redis and redis-streams"),
        ("QM_LOG_LEVEL", "LOUD", "DEBUG, INFO, WARNING or ERROR"),
        ("QM_LOG_FORMAT", "xml", "console or json"),
    ],
)
def test_error_names_the_setting_the_wrong_value_and_what_is_accepted(
    name: str, value: str, accepted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as error:
        settings()
    assert str(error.value).startswith(f"{name}={value!r}: must be ")
    assert accepted in str(error.value)


@pytest.mark.parametrize(
    ("environment", "broker", "is_batched"),
    [
        ({}, "redis://main/0", True),
        ({"QM_BROKER": "batched"}, "redis://main/0", True),
        ({"QM_BROKER": "stock"}, "redis://main/0", False),
        ({"BROKER_URL": "rediss://other/1"}, "rediss://other/1", True),
        ({"BROKER_URL": "unix:///run/redis.sock"}, "unix:///run/redis.sock", True),
        ({"BROKER_URL": "sentinel://:pw@a,b:5/1"}, "sentinel://:pw@a,b:5/1", True),
        ({"BROKER_URL": "sentinel://:pw@a,b:5/1", "QM_BROKER": "stock"}, "sentinel://:pw@a,b:5/1", False),
        ({"BROKER_URL": "amqps://app:pw@rabbit/vhost", "QM_BROKER": "stock"}, "amqps://app:pw@rabbit/vhost", False),
    ],
)
def test_transport_is_chosen_by_broker_url_and_setting(
    environment: dict[str, str], broker: str, is_batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"REDIS_URL": "redis://main/0", **environment}.items():
        monkeypatch.setenv(name, value)
    assert (settings().broker, settings().has_batched_broker) == (broker, is_batched)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://a/0", False),
        ("rediss://a/0", True),
        ("unix:///run/redis.sock", False),
        *(
            (f"{nodes}{option}", expected)
            for nodes in ("sentinel://a,b/0", "cluster://a,b/0")
            for option, expected in [
                ("", False),
                (f"?ssl_ca_certs={__file__}", True),
                (f"?ssl_certfile={__file__}", True),
            ]
        ),
    ],
)
def test_several_nodes_use_tls_only_with_an_option_for_it(url: str, expected: bool) -> None:
    assert is_encrypted(url, parse_redis_url(url)) is expected


@pytest.mark.parametrize("url", ["amqp://app:s3cret@rabbit//", "amqps://rabbit/"])
def test_batching_on_an_unsupported_broker_is_refused_in_one_sentence(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_URL", url)
    monkeypatch.setenv("QM_BROKER", "batched")
    with pytest.raises(
        ConfigurationError, match=r"^QM_BROKER='batched': must be stock, or unset, with BROKER_URL=.*$"
    ) as error:
        settings()
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("url", ["unix://app:s3cret@/run/redis.sock", "sentinel://a,b/0?sentinel_password=s3cret"])
def test_kombus_transport_is_refused_where_it_would_show_a_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", url)
    monkeypatch.setenv("QM_BROKER", "stock")
    with pytest.raises(ConfigurationError, match=r"^QM_BROKER='stock': must be batched, or unset, with a unix:// .*$"):
        settings()


@pytest.mark.parametrize("option", ["readConcernLevel=local", "readpreference=nearest", "tls=true;w=1", "W=2"])
def test_an_option_that_weakens_the_guarantees_is_refused(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGO_DB_URL", f"mongodb://db/product?{option}")
    with pytest.raises(ConfigurationError, match=r"^MONGO_DB_URL=.*must be .*keeps the guarantees$"):
        settings()


def test_read_concern_unsupported_by_transactions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGO_DB_URL", "mongodb://db/product?readConcernLevel=linearizable")
    with pytest.raises(
        ConfigurationError, match=r"^MONGO_DB_URL=.*: must be readConcernLevel=majority, or the URL with"
    ):
        settings()


@pytest.mark.parametrize(
    ("options", "unlike"),
    [
        ("replicaSett=qm&tls=true", ", unlike replicaSett"),
        ("w=majority;maxPoolSize=many;x", ", unlike maxPoolSize, x"),
        ("tls=true&ssl=false", ""),
    ],
)
def test_options_that_the_driver_refuses_are_named(options: str, unlike: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGO_DB_URL", f"mongodb://db/product?{options}")
    with pytest.raises(ConfigurationError) as error:
        settings()
    assert str(error.value).endswith(f": must be a URL with options that MongoDB's driver accepts{unlike}")


def test_options_that_do_not_weaken_guarantees_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "mongodb://db/product?replicaSet=qm&w=majority&journal=true&readPreference=primary&readConcernLevel=majority"
    monkeypatch.setenv("MONGO_DB_URL", url)
    assert settings().mongo_db_url == url


def test_all_wrong_values_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("rediss://:s3cret@h/0?ssl_ca_certs=/ca.pem", "rediss://***@h/0?ssl_ca_certs=/ca.pem"),
        ("unix://app:s3cret@/run/redis.sock?db=1", "unix://***@/run/redis.sock?db=1"),
        (
            "sentinel://app:s3cret@a:1,b:2/0?master_name=qm&sentinel_password=s3cret",
            "sentinel://***@a:1,b:2/0?master_name=qm&sentinel_password=***",
        ),
        ("mongodb+srv://app:s3cret@db.example/x?tlsCAFile=/ca.pem", "mongodb+srv://***@db.example/x?tlsCAFile=/ca.pem"),
        ("redis://cache:s3cret/0", "redis://cache:***/0"),
        ("redis://[2001:db8::1]:6379/0", "redis://[2001:db8::1]:6379/0"),
        ("redis://:s3cret@[2001:db8::1]/0", "redis://***@[2001:db8::1]/0"),
        ("mongodb://[fe80::1%25eth0]:1,[::ffff:192.0.2.1]:2/x", "mongodb://[fe80::1%25eth0]:1,[::ffff:192.0.2.1]:2/x"),
        ("redis://[::1]:s3cret/0", "redis://[::1]:***/0"),
        ("redis://[::1:s3cret/0", "redis://[:***/0"),
        ("redis://h:[s3cret]/0", "redis://h:***/0"),
        ("redis://h:[beef:1]/0", "redis://h:***/0"),
        ("me:s3cret@host/db", "***"),
        ("cache:6379:s3cret", "***"),
    ],
)
def test_secrets_of_a_url_are_not_shown(url: str, shown: str) -> None:
    assert redact_url(url) == shown


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
        ("REDIS_URL", "unix://app:s3/cret@/run/redis.sock"),
        ("REDIS_URL", "sentinel://:s3/cret@a,b/0"),
        ("REDIS_URL", "sentinel://a/0?sentinel_password=s3cret&x=s3cret"),
        ("REDIS_URL", "rediss://:s3cret@h/0?ssl_ca_certs=/no"),
        ("REDIS_URL", "redis://:x;s3cret@h/0"),
        ("REDIS_URL", "redis://u;s3cret:x@h/0"),
        ("QM_QUEUE_REDIS_URL", "redis://:x;s3cret@h/0"),
        ("BROKER_URL", "redis://:x;s3cret@h/0"),
        ("BROKER_URL", "amqp://u:x;s3cret@h//"),
        ("BROKER_URL", "amqp://h//;amqp://u:s3cret@h//"),
        ("MONGO_DB_URL", "mongodb://u:s3cret@x@h/db"),
        ("MONGO_DB_URL", "mongodb://u:s3cret/x@h/db"),
        ("MONGO_DB_URL", "mongodb://h:s3cret/db"),
        ("MONGO_DB_URL", "mongodb://u:1/2?s3cret=x@h/db"),
        ("MONGO_DB_URL", "mongodb://h/db?x=s3cret"),
        ("MONGO_DB_URL", "mongodb://h:99999/db"),
        ("MONGO_DB_URL", "mongodb+srv://u:s3cret@h\u2100/db"),
        ("MONGO_DB_URL", "mongodb+srv://u:s3cret[x@h/db"),
        ("MONGO_DB_URL", "me:s3cret@h/db"),
    ],
)
def test_unreadable_url_is_refused_without_its_password(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, url)
    with pytest.raises(ConfigurationError) as error:
        settings()
    assert str(error.value).startswith(f"{name}=")
    assert "\n" not in str(error.value)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("broker", ["redis://u%3Bv:x%3By@h/0", "amqp://u%3Bv:x%3By@h//"])
def test_encoded_semicolon_is_part_of_the_credentials(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_URL", broker)
    connection = Connection(kombu_url(settings()))
    assert (connection.userid, connection.password, connection.hostname) == ("u;v", "x;y", "h")


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("REDIS_URL", "http://app:s3cret@cache"),
        ("QM_BROKER", "redis://app:s3cret@cache"),
        ("QUEUE_NAME", "redis://app:s3cret@cache"),
        ("QM_MAX_QUEUE", "mongodb://app:s3cret@db/product"),
    ],
)
def test_wrong_url_is_shown_without_its_password(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, url)
    with pytest.raises(ConfigurationError, match=rf"^{name}='\w+://\*\*\*@") as error:
        settings()
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("name", FLAGS)
def test_flag_that_is_neither_true_nor_false_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("1", "0", "yes", "no", "on", "off", "ture", "t", "true,", "true false", " "):
        monkeypatch.setenv(name, value)
        settings.cache_clear()
        with pytest.raises(ConfigurationError) as error:
            settings()
        assert str(error.value) == f"{name}={value!r}: must be true or false"


@pytest.mark.parametrize("name", FLAGS)
def test_flag_is_read_in_any_case_with_spaces_around_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("true", "TRUE", " True\t", "false", " False "):
        monkeypatch.setenv(name, value)
        settings.cache_clear()
        assert getattr(settings(), name.lower()) is (value.strip().lower() == "true"), value


@pytest.mark.parametrize(
    ("value", "means"),
    [
        ("seo", ["seo"]),
        ("seo,ads", ["seo", "ads"]),
        (" seo , ads ", ["seo", "ads"]),
        ('["seo", "ads"]', ["seo", "ads"]),
        (' [" seo "]', ["seo"]),
        ("[]", []),
    ],
)
@pytest.mark.parametrize("name", [name for name in LISTS if name != "SOCKETIO_ADAPTER"])
def test_list_is_read_from_commas_and_from_json(
    name: str, value: str, means: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert getattr(settings(), name.lower()) == means


@pytest.mark.parametrize(
    ("value", "means"),
    [
        ("redis", ["redis"]),
        ("python, redis-streams", ["python", "redis-streams"]),
        ('["redis", "python", "redis"]', ["redis", "python"]),
    ],
)
def test_socketio_adapters_are_a_list_without_repetition(
    value: str, means: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOCKETIO_ADAPTER", value)
    assert settings().socketio_adapter == means


@pytest.mark.parametrize("name", [name.upper() for name in Settings.model_fields])
def test_every_wrong_value_of_every_setting_is_one_line_that_says_what_it_must_be(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = wrong_values(name)
    assert values
    for value in values:
        monkeypatch.setenv(name, value)
        settings.cache_clear()
        with pytest.raises(ConfigurationError) as error:
            settings()
        message = str(error.value)
        assert message.startswith((f"{name}=", f"{name}: ")), value
        assert ": must be " in message
        assert len(message.splitlines()) == 1
        assert len(message) < 400
        assert "s3cret" not in message
        message.encode()  # can be printed


@pytest.mark.parametrize(
    "name", [name.upper() for name, field in Settings.model_fields.items() if field.annotation in NUMBERS]
)
def test_error_of_a_wrong_number_names_its_range(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "many")
    with pytest.raises(ConfigurationError) as error:
        settings()
    assert re.fullmatch(
        rf"{name}='many': must be a (whole )?number (from|above) [\d.]+ (and up )?to \d+", str(error.value)
    )


@pytest.mark.parametrize(
    ("name", "accepted"),
    [("QM_SYSTEMS", "Python modules"), ("JOBS_IMPORTS", "Python modules"), ("SOCKETIO_ADAPTER", "redis-streams")],
)
@pytest.mark.parametrize("value", ["a,,b", "[", "[1]", '["a\\u0000"]'])
def test_error_of_a_wrong_list_names_its_elements(
    name: str, accepted: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=rf"^{name}=.*: must be .*{accepted}"):
        settings()


def wrong_values(name: str) -> list[str]:
    """Return values of several kinds that `name` must refuse; a text of bytes that are no UTF-8 always is one."""
    not_utf8 = os.fsdecode(b"s3\xffx")
    field = Settings.model_fields[name.lower()]
    if name == "QM_API_KEYS_FILE":  # any other text may be a path: the web process reads the file when it starts
        return ['[{"name": "a", "key": "s3cret"}]', ' {"key": "s3cret"}']
    if name == "QM_API_KEYS":
        return ["s3cret", "s3cret,s3cret", '["s3cret"]', '{"key": "s3cret"}', '[{"key": "s3cret"', "[" * 100_000]
    if name == "SENTRY_DSN":
        return ["s3cret", "https://s3cret@h", "https://h/1", "ftp://s3cret@h/1", "https://s3cret@h/x", not_utf8]
    if name in ("QM_ALERT_WEBHOOK_URL", "QM_ALERT_SMTP_URL"):
        unsendable = ["https://u:s3cret@h/x", "https://s3cret@h:1/x", "https://h/s3cret x"]
        return [
            *(unsendable if name == "QM_ALERT_WEBHOOK_URL" else []),
            "s3cret",
            ":s3cret@h",
            "ftp://s3cret@h/1",
            "https://",
            "smtp://:s3cret@",
            "http://h/s3cret\nx",
            not_utf8,
        ]
    if name.endswith("_SECRET"):
        return ["s3cret", "s3cret\ns3cret"]
    if name.endswith("_URL"):
        malformed = [":s3cret@h", "http://u:s3cret@h/x", "u:s3cret", "[1]", "redis://u:s3cret@h/x y", "s3cret" * 1_000]
        return [*malformed, f"redis://u:s3cret@h{not_utf8}/0", f"mongodb://u:s3cret@h/a{not_utf8}"]
    if name in LISTS:
        texts = [
            "a,,b",
            "a,",
            ",",
            " ",
            "[",
            '["a"',
            '["a",]',
            "[1]",
            '[["a"]]',
            '[""]',
            '{"a": "b"}',
            '"a"',
            "[" * 10_000,
            not_utf8,
            '["a\\u0000"]',
        ]
        return [*texts, *(["a b", "1a", "a..b", ".a", "a/b.py", '["a-b"]'] if name == "JOBS_IMPORTS" else [])]
    if name in FLAGS:
        return ["1", "yes", "on", "ture", "2026-01-01", "true\nfalse", not_utf8, "x" * 10_000]
    if field.annotation in NUMBERS:
        return [
            "many",
            "1,5",
            "1e999",
            "nan",
            "inf",
            "-inf",
            "-1",
            "0x10",
            "1;2",
            "9" * 30,
            "9" * 5_000,
            not_utf8,
        ]
    if get_origin(field.annotation) is Literal:
        return ["LOUD", "info,json", "true", not_utf8]
    if name.endswith("_COLLECTION"):
        return ["$where", "a..$b", ".a", "a.", "system.users", "a b", "x" * 200, not_utf8]
    if name == "QUEUE_NAME":
        return ["a b", "{a", "a}", "{a}b", "a:b", "x" * 65, "a\n", not_utf8]
    if name == "QM_ROOM_URL":
        return [
            "rooms/{id}",
            "javascript:{id}",
            "https://example.com/rooms",
            "https:///{id}",
            "https:// a/{id}",
            not_utf8,
        ]
    if name == "QM_WEB_PREFIX":
        return ["queue-manager", "/", "//a", "/a//b", "/a b", "/a?b", "/..", "/a/../b", "https://a", "/a\n", not_utf8]
    return [not_utf8]


def test_misspelt_setting_gets_a_warning_with_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QM_LEASE_SECOND", "5")
    assert settings().warnings() == ["QM_LEASE_SECOND is not a setting (did you mean QM_LEASE_SECONDS?)"]


@pytest.mark.parametrize(("timeout", "warnings"), [("19.5", 1), ("20", 0)])
def test_item_timeout_shorter_than_an_election_gets_a_warning(
    timeout: str, warnings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QM_ITEM_TIMEOUT_SECONDS", timeout)
    found = settings().warnings()
    assert [one.partition(" ")[0] for one in found] == ["QM_ITEM_TIMEOUT_SECONDS=19.5"] * warnings


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
def test_jobs_for_production_only_run_only_in_production(
    environment: dict[str, str], runs: bool, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("APP_ENV")
    for name, value in {"QM_JOBS": "true", "JOBS_PRODUCTION_ONLY": "true", **environment}.items():
        monkeypatch.setenv(name, value)
    assert settings().runs_jobs is runs
    warnings = [] if said is None else [f"JOBS_PRODUCTION_ONLY=true and {said}: no jobs run here"]
    assert settings().warnings() == warnings


def test_env_file_is_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("QM_LEASE_SECONDS=7\n")
    assert settings().qm_lease_seconds == 7


def test_env_file_that_is_not_utf8_is_one_line(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"QM_LEASE_SECONDS=7\nAPP_ENV=M\xfcnchen\n")
    with pytest.raises(ConfigurationError, match=r"^\.env: must be a readable file in UTF-8 \(UnicodeDecodeError\)$"):
        settings()


@pytest.mark.parametrize(
    "line",
    ['MONGO_DB_URL="mongodb://u:s3cret@h/db', "MONGO_DB_URL: mongodb://u:s3cret@h/db", " export MONGO_DB_URL='s3cret"],
)
def test_line_of_the_env_file_that_cannot_be_read_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"# one\n\nNOT OURS\n{line}\nQM_MAX_QUEUE=7\n")
    with pytest.raises(ConfigurationError, match=r"^\.env, line 4: MONGO_DB_URL must be written as MONGO") as error:
        settings()
    assert "s3cret" not in str(error.value)


def test_line_of_the_env_file_for_another_program_is_ignored(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("if [ -f other ]; then\n  . other\nfi\nQM_MAX_QUEUE=7\n")
    assert settings().qm_max_queue == 7


def test_misspelt_settings_in_the_env_file_get_a_warning(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("QM_LEASE_SECOND=7\nQM_MAX_QUEU=1\n")
    assert [warning.partition(" ")[0] for warning in settings().warnings()] == ["QM_LEASE_SECOND", "QM_MAX_QUEU"]


def written(default: object) -> str:
    if default is None:
        return ""
    if isinstance(default, list) and default:
        return ",".join(default)
    return str(default).lower() if isinstance(default, bool) else str(default)


def test_env_example_names_every_setting_with_its_default() -> None:
    defaults = dict(re.findall(r"^#?\s?([A-Z_]+)=(\S*)", (ROOT / ".env.example").read_text(), flags=re.MULTILINE))
    for name, field in Settings.model_fields.items():
        assert defaults[name.upper()] == written(field.default)


def test_the_reference_lists_every_setting_with_its_default_and_range() -> None:
    reference = (ROOT / "docs" / "reference" / "settings.md").read_text()
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\S+) \| (.+?) \| (.+?) \|$", reference, flags=re.MULTILINE)
    assert [name for name, *_ in rows] == [name.upper() for name in Settings.model_fields]
    for name, default, unit, _ in rows:
        field = Settings.model_fields[name.lower()]
        assert default == (f"`{written(field.default)}`" if field.default is not None else "none"), name
        bounds = [getattr(one, kind) for one in field.metadata for kind in ("ge", "gt", "le") if hasattr(one, kind)]
        assert all(re.search(rf"\b{re.escape(f'{bound:.10g}')}\b", unit) for bound in bounds), name
