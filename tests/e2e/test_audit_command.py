"""`queue-manager audit`: entries of commands and of requests."""

from __future__ import annotations

import getpass
import json
import socket
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from models import archive, audit
from models.archive import ARCHIVE_COLLECTION
from models.audit import AuditEntry
from models.database import collection, server_now
from queue_manager.broker.dead_letters import DEAD_LETTERS
from queue_manager.core.clock import hours, minutes, seconds, to_iso
from services import undo as undo_module
from services.audit import INCOMPLETE_DETAIL
from tests.any_jobs import INVOICE
from tests.e2e.commands import COMMAND, environment, interrupt_second_call, invoke, queue_manager
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.web_process import web


def done(*arguments: str) -> str:
    run = invoke(*arguments)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout


def entries(*arguments: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(done("audit", "--json", *arguments))["entries"]
    return listed


def test_a_deletion_is_undone(clean: Servers) -> None:
    id = json.loads(done("jobs", "run", INVOICE, "7", "--delay", "1000"))["_id"]
    job = done("jobs", "show", id, "--json")
    removed = done("jobs", "remove", id)
    (entry,) = entries("--action", "remove")
    assert removed == f"{id}  removed\nTo undo it within 10 minutes: queue-manager audit undo {entry['id']}\n"
    assert done("audit", "undo", entry["id"]) == "1 restored\n"
    assert done("jobs", "show", id, "--json") == job
    again = invoke("audit", "undo", entry["id"])
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == "queue-manager: Nothing to restore: no deletion was archived, or it was already undone\n"
    assert invoke("audit", "undo", "nothing").stderr == "queue-manager: There is no entry nothing in the audit log\n"


def cleared_jobs(count: int) -> AuditEntry:
    """Store and clear jobs; return the entry of the deletion."""
    for _ in range(count):
        done("jobs", "run", INVOICE, "7", "--delay", "1000")
    done("jobs", "clear", "pending", "--yes")
    (entry,) = of_action("clear")
    return entry


def of_action(action: str) -> list[AuditEntry]:
    return audit.page(audit.AuditQuery(action=action), after=None, limit=10)[0]


def test_an_undo_that_ran_out_of_time_can_be_continued(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = cleared_jobs(1)
    soon = ending_soon()
    with monkeypatch.context() as patched:
        patched.setattr(undo_module, "UNDO_BUDGET", seconds(-1))
        stopped = invoke("audit", "undo", entry.id)
    assert (stopped.returncode, stopped.stdout) == (1, "0 restored; more remain, repeat to continue\n")
    assert [one.detail for one in of_action("undo")] == [f"of {entry.id}; {INCOMPLETE_DETAIL}"]
    assert_prolonged(soon)
    assert done("audit", "undo", entry.id) == "1 restored\n"


def ending_soon() -> datetime:
    """Let the time to undo deletions end soon; return when."""
    soon = server_now() + seconds(30)
    for name, field in (("qm_audit", "undo_until"), (ARCHIVE_COLLECTION, "expires_at")):
        collection(name).update_many({}, {"$set": {field: soon}})
    return soon


def assert_prolonged(soon: datetime) -> None:
    later = of_action("clear")[0].undo_until
    assert later is not None
    assert later > soon + minutes(5)
    assert [one["expires_at"] > later for one in collection(ARCHIVE_COLLECTION).find()] == [True]


def test_an_undo_of_a_job_that_another_blocks_exits_with_1(clean: Servers) -> None:
    singular = ("jobs", "run", INVOICE, "7", "--delay", "1000", "--singular")
    done("jobs", "remove", json.loads(done(*singular))["_id"])
    done(*singular)
    blocked = invoke("audit", "undo", of_action("remove")[0].id)
    assert blocked.returncode == 1
    assert blocked.stdout == "0 restored; 1 kept out by a job with the same name and arguments\n"


def test_ctrl_c_reports_how_many_an_undo_has_restored(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_ARCHIVE_BYTES", 1)  # one job in each slice
    entry = cleared_jobs(2)
    soon = ending_soon()
    with monkeypatch.context() as patched:
        interrupt_second_call(patched, archive, "delete")
        stopped = invoke("audit", "undo", entry.id)
    assert stopped.returncode == 130
    assert stopped.stderr == "queue-manager: interrupted; 1 changed before; the outcome is unknown\n"
    assert [(one.outcome, one.count) for one in of_action("undo")] == [("unknown", 1)]
    assert_prolonged(soon)
    assert done("audit", "undo", entry.id) == "0 restored; 1 existed already\n"


def test_dead_letters_of_the_broker_are_restored(clean: Servers) -> None:
    letters = [json.dumps({"at": number, "queue": "q", "reason": "r", "message": "{}"}) for number in (2.0, 1.0)]
    with redis.Redis.from_url(clean.valkey.url, decode_responses=True) as client:
        client.rpush(DEAD_LETTERS, *letters)
        said_of_it = done("dead-letters", "clear", "--yes").splitlines()
        assert said_of_it[0] == "2 deleted"
        assert client.llen(DEAD_LETTERS) == 0
        newer = json.dumps({"at": 3.0, "queue": "q", "reason": "r", "message": "{}"})
        client.lpush(DEAD_LETTERS, newer)
        assert done(*said_of_it[1].partition("queue-manager ")[2].split()) == "2 restored\n"
        assert client.lrange(DEAD_LETTERS, 0, -1) == [newer, *letters]


def test_commands_are_recorded_under_the_user_of_the_system(clean: Servers) -> None:
    id = json.loads(done("jobs", "run", INVOICE, "7"))["_id"]
    done("jobs", "cancel", id)
    done("jobs", "remove", id)
    found = entries()
    assert [one["action"] for one in found] == ["remove", "cancel", "run"]
    assert {(one["who"], one["via"], one["address"]) for one in found} == {
        (getpass.getuser(), "cli", socket.gethostname())
    }
    assert (found[1]["before"], found[1]["after"]) == ({"state": "pending"}, {"state": "canceled"})
    why = done("why", id)
    assert why.startswith(f"job {id}  deleted\nDeleted by {getpass.getuser()} at ")
    assert f"Canceled by {getpass.getuser()}  state pending → canceled" in why


@pytest.mark.parametrize(("since", "until"), [("--since", "--until"), ("--from", "--to")])
def test_audit_entries_are_filtered_by_time(clean: Servers, since: str, until: str) -> None:
    before = to_iso(server_now() - hours(1))
    done("jobs", "run", INVOICE, "7")
    assert [one["action"] for one in entries(since, before)] == ["run"]
    assert entries(until, before) == []
    refused = invoke("audit", since, "yesterday")
    assert (refused.returncode, refused.stderr.startswith("queue-manager: --since: ")) == (2, True)


@pytest.mark.processes
def test_actions_of_the_web_process_are_listed_and_in_the_timeline_of_the_room(clean: Servers, tmp_path: Path) -> None:
    room = str(make_room(server_now() - hours(1)))
    with web(tmp_path, QM_CONVERSATIONS="true") as process:
        assert process.post(f"/api/systems/support-snooze/items/{room}/retry").status == 202
    (entry,) = entries("--id", room)
    assert (entry["who"], entry["via"], entry["action"]) == ("loopback", "api", "retry")
    assert "Retried by someone on this machine" in queue_manager("why", room, QM_CONVERSATIONS="true").stdout


@pytest.mark.processes
def test_a_command_on_redis_works_without_mongodb_and_its_entry_is_logged(clean: Servers) -> None:
    away = "mongodb://127.0.0.1:1/product?replicaSet=rs0"
    run = queue_manager("systems", "pause", "support-snooze", MONGO_DB_URL=away)
    assert (run.returncode, run.stdout) == (0, "support-snooze  paused\n")
    lines = [line for line in run.stderr.splitlines() if "An audit entry could not be stored" in line]
    assert len(lines) == 2
    assert '"outcome": "unknown"' in lines[0]
    assert '"outcome": "done"' in lines[1]
    assert '"action": "pause", "system": "support-snooze"' in lines[1]
    assert collection("qm_audit").count_documents({}) == 0


@pytest.mark.processes
def test_a_killed_process_leaves_an_audit_entry_without_outcome(clean: Servers) -> None:
    program = (
        "import os\n"
        "from services.audit import Actor, recorded\n"
        "with recorded(Actor(who='ada', via='cli', address='here'), 'clear', system='overdue-messages'):\n"
        "    os._exit(9)\n"
    )
    command = [COMMAND[0], "-c", program]
    assert subprocess.run(command, env=environment()).returncode == 9
    (entry,) = entries()
    assert (entry["who"], entry["action"], entry["outcome"]) == ("ada", "clear", "unknown")
