"""Undo over HTTP: deletions by people are restored from the archive, within ten minutes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from bson import ObjectId
from pymongo.errors import AutoReconnect

from models import archive, audit
from models.archive import ARCHIVE_COLLECTION, UNDO_TIME
from models.audit import AuditEntry
from models.database import collection, server_now
from queue_manager.broker import dead_letters
from queue_manager.core.clock import hours, seconds
from queue_manager.core.redis_client import connect
from queue_manager.operations.audit import undo_action
from services.audit import Actor, AuditedAction, recorded
from services.undo import MAX_UNDO_DURATION
from tests.any_jobs import INVOICE
from tests.any_jobs import MODULE as JOBS_MODULE
from tests.real_servers import Servers
from tests.web.queue_client import Queue, empty_queue, environment

ADA = Actor(who="ada", via="cli", address="here")
LOCATION = ("_stream_id", "_stream_name")
KILLED_WHILE_CLEARING = """
import os, signal
from queue_manager.operations.messages import clear_messages
from services.audit import Actor

actor = Actor(who="ada", via="cli", address="here")
clear_messages("main", actor, is_over=lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.fixture
def queue(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return empty_queue(clean, tmp_path_factory, QM_JOBS="true", QM_HOOKS="true", JOBS_IMPORTS=JOBS_MODULE)


def undo(queue: Queue, id: str, **headers: str) -> Any:
    answer = queue.post(f"/audit/{id}/undo", **headers)
    assert answer.status == 200, answer.text
    return answer.body


def shown(queue: Queue, id: str) -> dict[str, Any]:
    """Return what the API has of a message, without its location in Redis."""
    (found,) = queue.get(f"/search?id={id}").body["found"]
    document = queue.get(found["document"].removeprefix("/api")).body
    document = document.get("data", document)
    return {name: value for name, value in document.items() if name not in (*LOCATION, "server_time")}


def one_of_each_state(queue: Queue) -> dict[str, str]:
    """Add a message of each state, with its history; return the ids."""
    ids = {"processing": queue.add(payload={"held": [1.0, 12345678901234567890]})}
    assert queue.take()["id"] == ids["processing"]
    for state in ("dead", "acknowledged", "archived", "main"):
        ids[state] = queue.add(payload={"to": state}, priority=2)
    for state in ("dead", "acknowledged", "archived"):
        moved = queue.post("/queue/move", {"messages": [ids[state]], "toQueue": state, "errorReason": "broken"})
        assert moved.body["moved"] == 1
    return ids


@pytest.mark.slow
@pytest.mark.parametrize("how", ["one by one", "selected", "all queues"])
def test_deleted_messages_are_restored_as_they_were(queue: Queue, how: str) -> None:
    ids = one_of_each_state(queue)
    before = {state: shown(queue, id) for state, id in ids.items()}
    if how == "one by one":
        undos = [queue.delete(f"/queue/message/{id}").body["undo"] for id in ids.values()]
    elif how == "selected":
        undos = [queue.post("/queue/messages/delete", {"messageIds": [*ids.values()]}).body["undo"]]
    else:
        undos = [queue.delete("/queue/clear").body["undo"]]
    assert queue.sizes() == (0, 0, 0, 0, 0)
    assert sum(undo(queue, one)["restored"] for one in undos) == len(ids)
    held = ids.pop("processing")
    assert {*queue.ids("main")} == {held, ids["main"]}
    assert queue.ids("processing") == []
    for state, id in ids.items():
        assert id in queue.ids(state)
        assert shown(queue, id) == before[state]
    assert queue.take("")["id"] == ids["main"]  # of the higher priority
    taken = queue.take()
    assert (taken["id"], taken["attempt_count"]) == (held, 2)
    assert collection(ARCHIVE_COLLECTION).count_documents({}) == 0


@pytest.mark.slow
def test_a_queue_that_was_cleared_is_restored_in_its_order(queue: Queue) -> None:
    ids = [queue.add(payload=number) for number in range(250)]
    cleared = queue.delete("/queue/main/clear").body
    assert cleared["cleared"] == 250
    queue.add(payload="later")
    assert undo(queue, cleared["undo"]) == {
        "message": "250 restored",
        "restored": 250,
        "existing": 0,
        "blocked": 0,
        "is_complete": True,
    }
    taken = [queue.take() for _ in range(251)]
    assert [one["payload"] for one in taken] == ["later", *range(250)]
    assert [one["id"] for one in taken[1:]] == ids


def test_a_date_range_is_restored(queue: Queue) -> None:
    id = queue.add()
    deleted = queue.delete("/queue/messages?startTimestamp=0&endTimestamp=99999999999").body
    assert deleted["deletedCount"] == 1
    assert undo(queue, deleted["undo"])["restored"] == 1
    assert queue.ids("main") == [id]


def test_messages_that_exist_again_are_not_changed_by_undo(queue: Queue) -> None:
    id = queue.add(payload="old", id="order-1")
    deleted = queue.delete(f"/queue/message/{id}").body
    queue.add(payload="new", id="order-1")
    assert undo(queue, deleted["undo"]) == {
        "message": "0 restored; 1 existed already",
        "restored": 0,
        "existing": 1,
        "blocked": 0,
        "is_complete": True,
    }
    assert queue.take()["payload"] == "new"


@pytest.mark.parametrize("option", ["unique", "singular"])
def test_a_job_blocked_by_another_is_restored_after_that_is_removed(queue: Queue, option: str) -> None:
    wanted = {"name": INVOICE, "arguments": [1], "delay_seconds": 1000, option: True}
    first = queue.post("/jobs", wanted).body["job"]
    removed = queue.delete(f"/jobs/{first['_id']}").body
    second = queue.post("/jobs", wanted).body["job"]
    blocked = undo(queue, removed["undo"])
    assert blocked["message"] == "0 restored; 1 kept out by a job with the same name and arguments"
    assert (blocked["restored"], blocked["existing"], blocked["blocked"], blocked["is_complete"]) == (0, 0, 1, True)
    queue.delete(f"/jobs/{second['_id']}")
    assert undo(queue, removed["undo"])["restored"] == 1
    assert [job["_id"] for job in queue.get("/jobs").body["jobs"]] == [first["_id"]]


def test_jobs_are_restored_with_their_counts(queue: Queue) -> None:
    kept = queue.post("/jobs", {"name": INVOICE, "arguments": [1], "delay_seconds": 1000}).body["job"]
    ended = queue.post("/jobs", {"name": INVOICE, "arguments": [2]}).body["job"]
    queue.post(f"/jobs/{ended['_id']}/cancel")
    ended = queue.get(f"/jobs/{ended['_id']}").body["job"]
    before = queue.get("/jobs/status").body["queues"]
    removed = queue.delete(f"/jobs/{kept['_id']}").body
    cleared = queue.post("/jobs/clear", {"states": ["pending", "canceled"], "name": None}).body
    assert cleared["deleted"] == 1
    assert queue.get("/jobs").body["jobs"] == []
    for one in (removed, cleared):
        assert undo(queue, one["undo"])["restored"] == 1
    deleted = queue.post("/jobs/delete", {"ids": [kept["_id"], ended["_id"]]}).body
    assert undo(queue, deleted["undo"])["restored"] == 2
    assert queue.get(f"/jobs/{kept['_id']}").body["job"] == kept
    assert queue.get(f"/jobs/{ended['_id']}").body["job"] == ended
    assert queue.get("/jobs/status").body["queues"] == before


def test_undo_is_in_the_audit_log_and_done_once(queue: Queue) -> None:
    id = queue.add()
    deleted = queue.delete(f"/queue/message/{id}").body["undo"]
    entry = queue.get(f"/audit/{deleted}").body
    assert entry["undo_until"] is not None
    undo(queue, deleted)
    last = queue.get("/audit?action=undo").body["entries"][0]
    assert (last["system"], last["ids"], last["count"], last["detail"]) == (entry["system"], [id], 1, f"of {deleted}")
    assert queue.get(f"/audit/{deleted}").body["undo_until"] is None
    again = queue.post(f"/audit/{deleted}/undo")
    assert (again.status, again.body["message"]) == (
        409,
        "Nothing to restore: no deletion was archived, or it was already undone",
    )


def test_undo_of_a_clear_whose_process_was_killed_is_offered_once(queue: Queue) -> None:
    id = queue.add()
    command, env = [sys.executable, "-c", KILLED_WHILE_CLEARING], os.environ | environment(queue.redis_url)
    assert subprocess.run(command, env=env).returncode == -signal.SIGKILL
    (entry,) = queue.get("/audit?action=clear").body["entries"]
    assert (entry["outcome"], queue.ids("main")) == ("unknown", [])
    assert datetime.fromisoformat(entry["undo_until"]) == datetime.fromisoformat(entry["at"]) + UNDO_TIME
    early = queue.post(f"/audit/{entry['id']}/undo")
    assert early.status == 409
    assert early.body["message"] == "It may still be running; it can be undone a minute after its last deletion"

    a_minute_ago = {"expires_at": {"$subtract": ["$expires_at", 60_000]}}
    collection(ARCHIVE_COLLECTION).update_many({}, [{"$set": a_minute_ago}])
    assert undo(queue, entry["id"])["restored"] == 1
    assert queue.ids("main") == [id]
    assert queue.get(f"/audit/{entry['id']}").body["undo_until"] is None


def test_an_action_is_not_undone_twice_at_once(queue: Queue, clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = [f'{{"at":{number},"queue":"q","reason":"r","message":"{{}}"}}' for number in range(3)]
    with connect(clean.valkey.url) as client:
        client.rpush(dead_letters.DEAD_LETTERS, *letters)
        with recorded(ADA, "clear", system="broker", is_in_redis=True) as cleared:
            assert sum(dead_letters.clear(client, keep=cleared.keeper("dead-letter"))) == 3
        entry = audit.get(cleared.undo or "")
        assert entry is not None
        restore, refusals = dead_letters.restore, list[str]()

        def restore_while_another_is_refused(*arguments: Any) -> int:
            refused = queue.post(f"/audit/{entry.id}/undo")
            refusals.append(refused.body["message"])
            assert refused.status == 409
            return restore(*arguments)

        monkeypatch.setattr(dead_letters, "restore", restore_while_another_is_refused)
        assert undo_action(entry, ADA).restored == 3
        assert refusals == ["It is being undone"]
        assert client.lrange(dead_letters.DEAD_LETTERS, 0, -1) == letters


def test_an_interrupted_clear_of_dead_letters_is_undone_in_order(
    clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_PER_READ", 4)
    letters = [f'{{"at":{number},"queue":"q","reason":"r","message":"{{}}"}}' for number in range(10)]
    with connect(clean.valkey.url) as client:
        client.rpush(dead_letters.DEAD_LETTERS, *letters)

        def interrupted_clear(action: AuditedAction) -> None:
            clearing = dead_letters.clear(client, keep=action.keeper("dead-letter"))
            action.count = next(clearing) + next(clearing)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), recorded(ADA, "clear", system="broker", is_in_redis=True) as cleared:
            interrupted_clear(cleared)
        entry = audit.get(cleared.undo or "")
        assert entry is not None
        assert undo_action(entry, ADA).restored == 8
        assert client.lrange(dead_letters.DEAD_LETTERS, 0, -1) == letters


def removed_job(queue: Queue) -> AuditEntry:
    """Add a job and remove it; return the entry of the removal."""
    job = queue.post("/jobs", {"name": INVOICE, "arguments": [1], "delay_seconds": 1000}).body["job"]
    entry = audit.get(queue.delete(f"/jobs/{job['_id']}").body["undo"])
    assert entry is not None
    return entry


def test_an_undo_that_took_too_long_does_not_end_the_next_one(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, slices = removed_job(queue), archive.slices

    def begin_another(action: ObjectId) -> Iterator[archive.Slice]:
        pass_undo_time()
        assert audit.begin_undo(entry.id, within=MAX_UNDO_DURATION)
        return slices(action)

    monkeypatch.setattr(archive, "slices", begin_another)
    assert undo_action(entry, ADA).restored == 1
    assert not audit.begin_undo(entry.id, within=MAX_UNDO_DURATION)


def test_an_undo_succeeds_although_mongodb_fails_at_its_end(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: object) -> None:
        raise AutoReconnect("connection closed")

    monkeypatch.setattr(audit, "release_undo", unavailable)
    assert undo_action(removed_job(queue), ADA).restored == 1


def pass_undo_time() -> None:
    """Let the time of all undos that are running pass."""
    a_minute_ago = {"undo_ends_at": {"$subtract": ["$undo_ends_at", 60_000]}}
    collection("qm_audit").update_many({"undo_ends_at": {"$exists": True}}, [{"$set": a_minute_ago}])


def test_undo_that_was_killed_can_be_repeated_after_a_minute(queue: Queue) -> None:
    id = queue.add()
    deleted = queue.delete(f"/queue/message/{id}").body["undo"]
    assert audit.begin_undo(deleted, within=MAX_UNDO_DURATION)
    assert queue.post(f"/audit/{deleted}/undo").body["message"] == "It is being undone"
    pass_undo_time()
    assert undo(queue, deleted)["restored"] == 1
    (entry,) = collection("qm_audit").find({"action": "delete"})
    assert "undo_ends_at" not in entry


def test_undo_is_refused_after_its_time(queue: Queue) -> None:
    id = queue.add()
    deleted = queue.delete(f"/queue/message/{id}").body["undo"]
    collection("qm_audit").update_many({}, {"$set": {"undo_until": server_now() - seconds(1)}})
    refused = queue.post(f"/audit/{deleted}/undo")
    assert (refused.status, refused.body["message"]) == (409, "The time to undo it (10 minutes) has passed")
    assert queue.ids("main") == []


def test_the_archive_is_deleted_after_its_time(queue: Queue) -> None:
    queue.delete(f"/queue/message/{queue.add()}")
    (stored,) = collection(ARCHIVE_COLLECTION).find()
    assert hours(1) + UNDO_TIME < stored["expires_at"] - server_now()  # an action may take long before its undo begins
    indexes = collection(ARCHIVE_COLLECTION).index_information()
    assert indexes["archive_kept_until"]["expireAfterSeconds"] == 0


def test_undo_of_an_irreversible_action_is_refused(queue: Queue) -> None:
    id = queue.add()
    queue.put(f"/queue/message/{id}", {"payload": 2})
    (edit,) = queue.get("/audit?action=edit").body["entries"]
    assert edit["undo_until"] is None
    assert queue.post(f"/audit/{edit['id']}/undo").status == 409
    assert queue.post("/audit/nothing/undo").status == 404
    assert queue.delete("/queue/main/clear").body["cleared"] == 1
    assert queue.delete("/queue/main/clear").body["undo"] is None


def test_payloads_are_restored_byte_for_byte(queue: Queue) -> None:
    payload = '{"a":1.0,"b":[],"c":12345678901234567890,"d":"\\u00e9"}'
    id = queue.post("/queue/message", f'{{"type":"mail","payload":{payload}}}').body["id"]
    queue.post("/queue/move", {"messages": [id], "toQueue": "dead", "errorReason": "x"})
    undo(queue, queue.delete(f"/queue/message/{id}").body["undo"])
    assert f'"payload":{payload}' in queue.get("/queue/dead/messages").text
