"""Dead letters of the broker, as a user of `queue-manager` and `/metrics` sees them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from celery import Celery
from prometheus_client import CollectorRegistry, generate_latest
from redis import Redis

from models import audit
from queue_manager.broker import dead_letters
from queue_manager.core.redis_client import connect
from queue_manager.web.routes.metrics import SystemsCollector
from tests.documented import DOCS, block
from tests.e2e.commands import (
    COMMAND,
    interrupt_second_call,
    interrupted_after,
    invoke,
    queue_manager,
    said_on_a_terminal,
)
from tests.real_servers import Servers

HOSTILE = "\x1b[31mred\x1b[0m [bold]x[/] ü"


@pytest.fixture
def letters(clean: Servers) -> Servers:
    with connect(clean.valkey.url) as client:
        for number in range(3):
            letter = {
                "at": 1_767_225_600.0 + number,
                "queue": "scans",
                "reason": f"reason {number}",
                "message": HOSTILE,
            }
            client.lpush(dead_letters.DEAD_LETTERS, json.dumps(letter))
    return clean


def gauge() -> str:
    registry = CollectorRegistry()
    registry.register(SystemsCollector([], {}))
    lines = generate_latest(registry).decode().splitlines()
    return next(line for line in lines if line.startswith("queue_manager_dead_letters "))


@pytest.mark.usefixtures("letters")
def test_dead_letters_are_listed_newest_first() -> None:
    shown = invoke("dead-letters", "--limit", "2")
    assert shown.returncode == 0, shown.stderr
    cells = [line.split() for line in shown.stdout.splitlines()[1:3]]
    assert all(re.fullmatch("[0-9a-f]{12}", of_row.pop(1)) for of_row in cells)
    rows = [of_row[:4] for of_row in cells]
    assert rows == [[f"2026-01-01T00:00:0{number}.000Z", "scans", "reason", str(number)] for number in (2, 1)]
    assert "[bold]x[/] ü" in shown.stdout
    assert "there are 3" in shown.stdout


@pytest.mark.processes
@pytest.mark.usefixtures("letters")
def test_a_message_cannot_send_escape_sequences_to_a_terminal() -> None:
    for options in ([], ["--json"]):
        assert "\x1b[31m" not in said_on_a_terminal([*COMMAND, "dead-letters", *options])


@pytest.mark.usefixtures("letters")
def test_json_shows_dead_letters_in_full() -> None:
    page = json.loads(invoke("dead-letters", "--json", "--limit", "1").stdout)
    assert page == {
        "count": 3,
        "dead_letters": [
            {
                "at": "2026-01-01T00:00:02.000Z",
                "id": page["dead_letters"][0]["id"],
                "queue": "scans",
                "reason": "reason 2",
                "message": HOSTILE,
            }
        ],
    }


@pytest.mark.usefixtures("letters")
def test_health_and_metrics_show_dead_letters_until_they_are_cleared() -> None:
    problems = json.loads(invoke("health", "--json").stdout)["problems"]
    (problem,) = [one for one in problems if (one["system"], one["rule"]) == ("broker", "dead-letters")]
    assert problem["text"] == "3 Celery messages could not be decoded or dispatched"
    assert "`queue-manager dead-letters`" in problem["action"]
    assert gauge() == "queue_manager_dead_letters 3.0"

    assert invoke("dead-letters", "clear").returncode != 0  # nobody said yes
    assert gauge() == "queue_manager_dead_letters 3.0"
    cleared = invoke("dead-letters", "clear", "--yes").stdout
    assert cleared.startswith("3 deleted\nTo undo it within 10 minutes: queue-manager audit undo ")

    assert gauge() == "queue_manager_dead_letters 0.0"
    assert "dead-letters" not in invoke("health", "--json").stdout
    assert invoke("dead-letters").stdout == "no dead letters\n"


@pytest.mark.usefixtures("letters")
def test_an_interrupted_clear_tells_how_many_were_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_PER_READ", 2)
    interrupt_second_call(monkeypatch, Redis, "pipeline")
    cleared = invoke("dead-letters", "clear", "--yes")
    (entry,) = audit.page(audit.AuditQuery(), after=None, limit=1)[0]
    assert (cleared.returncode, cleared.stderr) == (130, interrupted_after(2, str(entry.id)))
    assert (entry.count, entry.outcome) == (2, "unknown")
    assert invoke("dead-letters").stdout.count("reason") == 2, "a heading and one letter"


def bury(servers: Servers, queue: str, message: str, **members: object) -> None:
    letter = {"at": 1_767_225_600.0, "queue": queue, "reason": "for a test", "message": message, **members}
    with connect(servers.valkey.url) as client:
        client.lpush(dead_letters.DEAD_LETTERS, json.dumps(letter))


def sent(servers: Servers, name: str, **options: object) -> str:
    """Return a message as a stock application sends it."""
    with Celery(broker=servers.valkey.url, set_as_current=False) as theirs, connect(servers.valkey.url) as client:
        theirs.send_task(name, queue="for-a-test", **options)
        message: str = client.rpop("for-a-test")
        return message


def contents(servers: Servers, *lists: str) -> list[list[str]]:
    with connect(servers.valkey.url) as client:
        return [client.lrange(name, 0, -1) for name in lists]


def test_replay_requeues_all_messages_byte_for_byte_and_in_order(clean: Servers) -> None:
    first, second = sent(clean, "shop.charge"), sent(clean, "shop.charge", priority=0)
    urgent = json.dumps(
        {**json.loads(sent(clean, "t")), "properties": {**json.loads(first)["properties"], "priority": 5}}
    )
    tried = json.loads(sent(clean, "t"))
    tried["properties"]["put_aside"] = True
    for queue, message in (("celery", first), ("celery", second), ("celery", urgent), ("scans", json.dumps(tried))):
        bury(clean, queue, message)

    refused = invoke("dead-letters", "replay", "--all")
    assert refused.returncode == 1
    assert "Replay 4 dead letters?" in refused.stdout
    assert contents(clean, "celery", "scans") == [[], []]

    result = invoke("dead-letters", "replay", "--all", "--yes")

    assert (result.returncode, result.stdout, result.stderr) == (0, "4 replayed\n", "")
    ((entry,), _) = audit.page(audit.AuditQuery(action="replay"), after=None, limit=2)
    assert (len(entry.ids), entry.count) == (4, 4)
    *others, [again] = contents(clean, "celery", "celery\x06\x163", dead_letters.DEAD_LETTERS, "scans")
    assert others == [[second, first], [urgent], []]
    del tried["properties"]["put_aside"]
    assert json.loads(again) == tried


def test_replay_by_id_requeues_messages_and_names_refused_ones(clean: Servers) -> None:
    good, other = sent(clean, "good"), sent(clean, "other")
    for queue, message in (("scans", good), ("scans", other), ("scans", HOSTILE), ("scans", "\\xff"), ("", good)):
        bury(clean, queue, message)
    shown = json.loads(invoke("dead-letters", "--json").stdout)["dead_letters"]
    ids = [letter["id"] for letter in reversed(shown)]

    result = invoke("dead-letters", "replay", ids[0], *ids[2:], "000000000000")

    assert (result.returncode, result.stdout) == (1, "1 replayed\n")
    errors = result.stderr.splitlines()
    assert [line.split(": ")[0] for line in errors] == [*ids[2:], "000000000000"]
    assert [word in line for word, line in zip(("JSON", "JSON", "queue", "no such"), errors, strict=True)] == [True] * 4
    assert "\x1b" not in result.stderr
    [waiting], left = contents(clean, "scans", dead_letters.DEAD_LETTERS)
    assert waiting == good
    assert len(left) == 4
    ((entry,), _) = audit.page(audit.AuditQuery(action="replay"), after=None, limit=2)
    assert (entry.system, entry.ids, entry.count, entry.total) == ("broker", ids[:1], 1, 5)


def test_a_replay_of_no_dead_letter_is_recorded_as_one_that_changed_nothing(clean: Servers) -> None:
    bury(clean, "scans", HOSTILE)
    (letter,) = json.loads(invoke("dead-letters", "--json").stdout)["dead_letters"]
    result = invoke("dead-letters", "replay", letter["id"], "000000000000")
    assert (result.returncode, result.stdout) == (1, "0 replayed\n")
    ((entry,), _) = audit.page(audit.AuditQuery(action="replay"), after=None, limit=2)
    assert (entry.ids, entry.count, entry.total) == ([], 0, 2)
    assert invoke("dead-letters", "replay", letter["id"]).returncode == 1


def test_the_documented_commands_work(clean: Servers) -> None:
    good, other = sent(clean, "good"), sent(clean, "other")
    for message in (good, other):
        bury(clean, "scans", message)
    page = DOCS / "how-to" / "dead-letters.md"
    show, replay, clear = (
        line.partition("#")[0].split()[1:] for line in block(0, heading="Celery's broker", page=page).splitlines()
    )
    listed = invoke(*show, "--json")
    (id, *_) = [letter["id"] for letter in reversed(json.loads(listed.stdout)["dead_letters"])]
    replayed = invoke(*(id if word == "ID…" else word for word in replay))
    cleared = invoke(*clear)
    assert [one.returncode for one in (listed, replayed, cleared)] == [0, 0, 0], cleared.stderr
    assert contents(clean, "scans", dead_letters.DEAD_LETTERS) == [[good], []]


@pytest.mark.parametrize("arguments", [[], ["--all", "0123456789ab"]])
def test_replay_requires_ids_or_all(arguments: list[str], clean: Servers) -> None:
    bury(clean, "scans", sent(clean, "t"))
    result = invoke("dead-letters", "replay", *arguments)
    assert result.returncode == 2
    assert "--all" in result.stderr
    assert contents(clean, "scans") == [[]]


@pytest.mark.processes
def test_unavailable_server_is_reported_in_one_line(tmp_path: Path) -> None:
    away = "redis://:secret@127.0.0.1:1/0"
    result = queue_manager("dead-letters", cwd=tmp_path, REDIS_URL=away)
    assert result.returncode == 1
    assert result.stderr.startswith("queue-manager: Redis at redis://")
    assert "secret" not in result.stderr
