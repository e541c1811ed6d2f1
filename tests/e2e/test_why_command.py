"""`queue-manager why`: as a user sees it."""

from __future__ import annotations

import json

import pytest

from dev.ports import free_port
from models.database import collection, server_now
from queue_manager.core.clock import seconds
from services.message_queue import message_queue
from tests.any_jobs import INVOICE, MODULE, made
from tests.docs.transcript import Transcript
from tests.documented import DOCS, block, output
from tests.e2e.commands import invoke, queue_manager
from tests.eventually import eventually
from tests.rooms import make_room, make_work, scan

pytestmark = pytest.mark.usefixtures("clean")


def test_why_prints_an_answer_and_a_timeline() -> None:
    shown = output(block(0, heading="One item", page=DOCS / "how-to" / "diagnose.md"))
    room = make_room(server_now() - seconds(90))
    (item,) = scan(make_work(server_now))
    eventually(lambda: collection("qm_item_events").count_documents({}) == 1)
    for id in (str(room), item.task_id):
        said = invoke("why", id)
        assert said.returncode == 0, said.stderr
        heading, answer, dispatched, snoozed = said.stdout.splitlines()
        assert heading.startswith(f"room {room}  ")
        assert heading.endswith("  queued")
        assert answer.endswith("; waiting in the queue support-snooze as the next one; no worker consumes that queue.")
        assert dispatched.endswith(f"  Dispatched  task {item.task_id}")
        assert "  Snoozed  by " in snoozed
        assert Transcript().matches(shown, said.stdout)


def test_json_is_that_of_the_api() -> None:
    make_room(["soon"], _id="a-room")
    (one,) = json.loads(invoke("why", "a-room", "--json").stdout)["found"]
    assert (one["id"], one["label"]) == ('"a-room"', "malformed")


def test_unknown_id_and_unknown_system_are_reported() -> None:
    said = invoke("why", "nothing", "--system", "support-snooze")
    assert (said.returncode, said.stdout) == (1, "No item, message, job or task has the id nothing.\n")
    said = invoke("why", "nothing", "--system", "rooms")
    assert said.returncode == 2
    assert "There is no system 'rooms'; the systems are: support-snooze, " in said.stderr


@pytest.mark.processes
def test_a_job_is_explained_without_redis() -> None:
    id = str(made(INVOICE, 1)["_id"])
    said = queue_manager("why", id, REDIS_URL="redis://127.0.0.1:1/0", QM_JOBS="true", JOBS_IMPORTS=f'["{MODULE}"]')
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"job {id}  ")
    assert "because Redis does not answer" in said.stdout


@pytest.mark.processes
@pytest.mark.parametrize(("due_in", "label"), [(-90, "due"), (3600, "snoozed")])
def test_a_room_is_explained_without_redis(due_in: int, label: str) -> None:
    room = make_room(server_now() + seconds(due_in))
    said = queue_manager("why", str(room), REDIS_URL="redis://127.0.0.1:1/0")
    assert said.returncode == 0, said.stderr
    heading, answer, *_ = said.stdout.splitlines()
    assert (heading.startswith(f"room {room}  "), heading.endswith(f"  {label}")) == (True, True)
    assert "; whether it is dispatched is unknown; the time of the next scan is unknown, because Redis does" in answer


@pytest.mark.processes
def test_a_message_is_explained_without_mongodb() -> None:
    id = message_queue().enqueue("send_mail")
    gone = f"mongodb://127.0.0.1:{free_port()}/product?serverSelectionTimeoutMS=300"
    said = queue_manager("why", id, MONGO_DB_URL=gone, QM_MESSAGE_QUEUE="true")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"message {id}  ")
    assert "audit log could not be searched: MongoDB at mongodb://127.0.0.1" in said.stdout


@pytest.mark.processes
def test_an_unavailable_server_is_reported_in_one_line() -> None:
    said = queue_manager("why", "a", REDIS_URL="redis://127.0.0.1:1/0")
    assert said.returncode == 1
    assert said.stderr.startswith("queue-manager: Redis at redis://127.0.0.1:1/0 does not answer (")
