"""`queue-manager why`, run as a user does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from dev.ports import free_port
from models.database import collection, server_now
from queue_manager.core.clock import seconds
from services.message_queue import message_queue
from tests.any_jobs import INVOICE, MODULE, made
from tests.docs.transcript import Transcript
from tests.documented import DOCS, block, output
from tests.e2e.commands import queue_manager
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room, make_work, scan

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("clean")]


def why(directory: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return queue_manager("why", *arguments, cwd=directory, **env)


def test_why_prints_an_answer_and_a_timeline(tmp_path: Path) -> None:
    shown = output(block(0, heading="One item", page=DOCS / "how-to" / "diagnose.md"))
    room = make_room(server_now() - seconds(90))
    (item,) = scan(make_work(server_now))
    eventually(lambda: collection("qm_item_events").count_documents({}) == 1)
    for id in (str(room), item.task_id):
        said = why(tmp_path, id)
        assert said.returncode == 0, said.stderr
        heading, answer, dispatched, snoozed = said.stdout.splitlines()
        assert heading.startswith(f"room {room}  ")
        assert heading.endswith("  queued")
        assert answer.endswith("; waiting in the queue support-snooze as the next one; no worker consumes that queue.")
        assert dispatched.endswith(f"  Dispatched  task {item.task_id}")
        assert "  Snoozed  by " in snoozed
        assert Transcript().matches(shown, said.stdout)


def test_json_is_that_of_the_api(tmp_path: Path) -> None:
    make_room(["soon"], _id="a-room")
    (one,) = json.loads(why(tmp_path, "a-room", "--json").stdout)["found"]
    assert (one["id"], one["label"]) == ('"a-room"', "malformed")


def test_unknown_id_and_unknown_system_are_reported(tmp_path: Path) -> None:
    said = why(tmp_path, "nothing", "--system", "support-snooze")
    assert (said.returncode, said.stdout) == (1, "Nothing has the id nothing.\n")
    said = why(tmp_path, "nothing", "--system", "rooms")
    assert said.returncode == 2
    assert "There is no system 'rooms'; the systems are: support-snooze, " in said.stderr


def test_a_job_is_explained_without_redis(tmp_path: Path) -> None:
    id = str(made(INVOICE, 1)["_id"])
    said = why(tmp_path, id, REDIS_URL="redis://127.0.0.1:1/0", QM_JOBS="true", JOBS_IMPORTS=f'["{MODULE}"]')
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"job {id}  ")
    assert "because Redis does not answer" in said.stdout


def test_a_message_is_explained_without_mongodb(clean: Servers, tmp_path: Path) -> None:
    id = message_queue().enqueue("send_mail")
    gone = f"mongodb://127.0.0.1:{free_port()}/product?serverSelectionTimeoutMS=300"
    said = why(tmp_path, id, MONGO_DB_URL=gone, QM_MESSAGE_QUEUE="true")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"message {id}  ")
    assert "audit log could not be searched: MongoDB at mongodb://127.0.0.1" in said.stdout


def test_an_unavailable_server_is_reported_in_one_line(tmp_path: Path) -> None:
    said = why(tmp_path, "a", REDIS_URL="redis://127.0.0.1:1/0")
    assert said.returncode == 1
    assert said.stderr.startswith("queue-manager: Redis at redis://127.0.0.1:1/0 does not answer (")
