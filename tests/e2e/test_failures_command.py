"""`queue-manager failures`: groups of failures, and replays of a group."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

import services.failures
from dev.ports import LOOPBACK, free_port
from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.operations import failures
from services.message_queue import message_queue
from tasks import retry
from tests.e2e.commands import interrupt_second_call, invoke, queue_manager
from tests.real_servers import Servers
from tests.rooms import make_room, make_work, scan
from tests.tasks.hand_worker import waiting_messages

HOSTILE = "\x1b[31mred [bold]x[/]"


def run(*arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    return invoke("failures", *arguments, answer=answer)


def groups() -> list[Any]:
    listed: list[Any] = json.loads(run("--json").stdout)["groups"]
    return listed


def fail_room(reason: str) -> str:
    work = make_work(server_now)
    make_room(server_now() - seconds(300))
    (item,) = scan(work)
    work.give_up(item, error=reason)
    return str(item.args[0])


def test_groups_are_shown_and_replayed_after_confirmation(clean: Servers) -> None:
    rooms = {fail_room(f"{HOSTILE} {number}") for number in range(2)}
    fail_room("something else")
    shown = run()
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"^[0-9a-f]{12}  2  support-snooze  support-snooze  \S+Z to \S+Z$", shown.stdout, re.MULTILINE)
    assert "\x1b" not in shown.stdout
    assert "red [bold]x[/] <number>" in shown.stdout
    group = groups()[0]
    assert group["count"] == 2
    assert run("replay", group["id"], answer="n\n").returncode == 1
    assert waiting_messages(clean.valkey.url, "support-snooze") == []
    replayed = run("replay", group["id"], answer="y\n")
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout.endswith("2 of 2 replayed\n")
    assert {message.args[0] for message in waiting_messages(clean.valkey.url, "support-snooze")} == rooms
    assert [one["reason"] for one in groups()] == ["something else"]


def test_a_group_is_replayed_as_far_as_it_was_read(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        fail_room(f"timeout {number}")
    monkeypatch.setattr(services.failures, "MAX_FAILURES", 2)
    assert run().stdout.endswith("Rooms: only the newest 2 failures are counted\n")
    replayed = run("replay", groups()[0]["id"], "--yes")
    assert (replayed.returncode, replayed.stdout) == (0, "2 of 2 replayed\n")
    assert replayed.stderr == "there may be more: run the command again\n"


def test_the_number_of_groups_that_are_not_shown_is_reported(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    for reason in ("broken", "closed", "lost"):
        fail_room(reason)
    monkeypatch.setattr(failures, "MAX_GROUPS", 2)
    shown = run()
    assert len(re.findall("^[0-9a-f]{12}  1  ", shown.stdout, re.MULTILINE)) == 2
    assert shown.stdout.endswith("2 of 3 groups; use --system or --search to see others\n")
    assert "groups" not in run("--search", "lost").stdout


def test_exit_code_is_1_if_a_failure_was_not_replayed(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        fail_room(f"timeout {number}")
    original = retry.retry
    monkeypatch.setattr(retry, "retry", lambda system, listed, ids: original(system, listed, ids[:1]))
    replayed = run("replay", groups()[0]["id"], "--yes")
    assert (replayed.returncode, replayed.stdout, replayed.stderr) == (1, "1 of 2 replayed\n", "")


def test_ctrl_c_reports_how_many_of_a_group_were_replayed(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        fail_room(f"timeout {number}")
    monkeypatch.setattr(failures, "REPLAY_SLICE_SIZE", 1)
    interrupt_second_call(monkeypatch, retry, "retry")
    replayed = invoke("failures", "replay", groups()[0]["id"], "--yes")
    assert replayed.returncode == 130
    assert replayed.stderr == "queue-manager: interrupted; 1 changed before; the outcome is unknown\n"


@pytest.mark.usefixtures("clean")
def test_an_unknown_group_is_reported_in_one_line() -> None:
    assert run().stdout == "no failures in Rooms, Broker\n"
    gone = run("replay", "0123456789ab", "--yes")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "There is no group '0123456789ab'" in gone.stderr


@pytest.mark.usefixtures("clean")
def test_unknown_system_is_refused_with_a_suggestion() -> None:
    unknown = invoke("failures", "--system", "suport-snooze")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert (
        "There is no system 'suport-snooze' (did you mean support-snooze?); the systems are: support-snooze"
        in unknown.stderr
    )
    assert invoke("failures", "--system", "support-snooze").stdout == "no failures in Rooms\n"


@pytest.mark.processes
@pytest.mark.usefixtures("clean")
def test_unavailable_sources_of_failures_are_named() -> None:
    url = f"redis://{LOOPBACK}:{free_port()}/0"
    shown = queue_manager("failures", REDIS_URL=url)
    assert shown.returncode == 1
    none, *away = shown.stdout.splitlines()
    assert none == "no failures in the lists that could be read"
    for line, name in zip(away, ("Rooms", "Broker"), strict=True):
        assert line.startswith(f"{name}: Redis at {url} does not answer")
    replayed = queue_manager("failures", "replay", "0123456789ab", "--yes", REDIS_URL=url)
    assert (replayed.returncode, replayed.stdout) == (1, "")
    assert "was not found in the lists that could be read; Rooms: Redis at" in replayed.stderr


@pytest.mark.processes
@pytest.mark.usefixtures("clean")
def test_failures_in_redis_are_shown_without_mongodb() -> None:
    queue = message_queue()
    queue.enqueue("send_mail", {}, max_attempts=1)
    taken = queue.dequeue(timeout=0)
    assert taken is not None
    queue.nack(taken.id, taken.lock_token, reason="no such address")
    url = f"mongodb://{LOOPBACK}:{free_port()}/product?serverSelectionTimeoutMS=300"
    shown = queue_manager("failures", "--json", MONGO_DB_URL=url, QM_MESSAGE_QUEUE="true")
    found = json.loads(shown.stdout)
    assert [one["sample"] for one in found["groups"]] == ["no such address"]
    problems = {one["title"]: one["problem"] for one in found["lists"]}
    assert problems["Messages"] is None
    assert problems["Rooms"].startswith("MongoDB at ")
