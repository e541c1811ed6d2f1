"""The audit log: its bounds, its outcomes, and which commands are recorded."""

from __future__ import annotations

import getpass
from collections.abc import Callable

import pytest
from bson import ObjectId
from pymongo.errors import AutoReconnect, OperationFailure

from beat_schedule import SYSTEMS
from models import archive, audit, schema
from models.audit import AuditEntry, AuditQuery
from models.database import collection
from queue_manager import pauses
from queue_manager.core.clock import hours
from queue_manager.core.errors import AppError, Unavailable
from queue_manager.operations import switches
from queue_manager.server_calls import mongodb
from queue_manager.system import System
from services.audit import MAX_AUDITED_IDS, MAX_AUDITED_IDS_LENGTH, Actor, recorded, timeline_event
from tests.e2e.commands import invoke
from tests.real_servers import Servers

SYSTEMS_WITH_ITEMS = [one for one in SYSTEMS if one.item_task is not None]
ADA = Actor(who="ada", via="cli", address="here")


def entries() -> list[AuditEntry]:
    return audit.page(AuditQuery(), after=None, limit=100)[0]


def run(*arguments: str, code: int = 0) -> str:
    result = invoke(*arguments)
    assert result.returncode == code, result.stderr
    return result.stdout + result.stderr


def test_an_entry_is_written_before_its_action_and_completed_after_it(clean: Servers) -> None:
    with recorded(ADA, "clear", system="overdue-messages", filter={"state": "main", "type": None}) as action:
        (begun,) = entries()
        action.count = 3
    (ended,) = entries()
    assert (begun.outcome, begun.count, begun.filter) == ("unknown", None, {"state": "main"})
    assert (ended.outcome, ended.count, ended.at) == ("done", 3, begun.at)


@pytest.mark.parametrize(
    ("changed", "others", "more"), [(1, "", ""), (2, "with 1 other", ""), (5, "with 4 others", " and 2 more")]
)
def test_only_what_was_changed_is_counted(clean: Servers, changed: int, others: str, more: str) -> None:
    ids = [f"room-{number}" for number in range(10)]
    with recorded(ADA, "retry", ids=ids) as action:
        action.succeeded(ids[:changed])
    (entry,) = entries()
    assert timeline_event(entry).detail == others
    assert run("audit").splitlines()[1:] == [f"    {', '.join(ids[:changed][:3])}{more}"]


@pytest.mark.parametrize(
    ("fail", "outcome"),
    [
        (lambda: _raise(AppError("It is held")), "failed"),
        (lambda: _raise(AutoReconnect("away")), "unknown"),
        (lambda: _unavailable(), "unknown"),
        (lambda: _raise(KeyboardInterrupt()), "unknown"),
    ],
    ids=["refused", "a server away", "a server away during a request", "interrupted"],
)
def test_outcome_of_an_action_that_raises_is_its_error(clean: Servers, fail: Callable[[], None], outcome: str) -> None:
    with pytest.raises((AppError, AutoReconnect, Unavailable, KeyboardInterrupt)), recorded(ADA, "clear"):
        fail()
    (entry,) = entries()
    assert (entry.outcome, entry.error is None) == (outcome, False)


def _raise(error: BaseException) -> None:
    raise error


def _unavailable() -> None:
    with mongodb():
        raise AutoReconnect("away")


def test_texts_and_ids_are_bounded_and_can_be_stored(clean: Servers) -> None:
    ids = [f"{number}" for number in range(2_000)]
    odd = "\ud800$\x00"
    with recorded(ADA, "edit", ids=ids, detail="x" * 5_000, filter={"search": odd}) as action:
        action.changed({"payload": "y" * 5_000, "same": 1, "n": 2**63}, {"payload": odd, "same": 1, "n": 2**63 - 1})
    entry = audit.get(entries()[0].id)
    assert entry is not None
    assert (len(entry.ids), entry.total, len(entry.detail)) == (MAX_AUDITED_IDS, 2_000, 1_000)
    assert entry.filter == {"search": "?$\x00"}
    assert entry.before is not None
    assert (len(entry.before["payload"]), entry.before["n"]) == (1_000, str(2**63))
    assert entry.after == {"payload": "?$\x00", "n": 2**63 - 1}


def test_fewer_ids_are_stored_if_they_are_long(clean: Servers) -> None:
    id = "ж" * 8_000
    with recorded(ADA, "delete", ids=[id] * 2_000):
        pass
    entry = audit.get(entries()[0].id)
    assert entry is not None
    assert entry.ids == [id] * (MAX_AUDITED_IDS_LENGTH // len(id))


def test_without_mongodb_only_actions_on_redis_are_allowed(
    clean: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit, "begin", lambda *_, **__: _raise(AutoReconnect("away")))
    begun = []
    with (
        pytest.raises(Unavailable, match=r"does not answer.*; nothing was changed$") as raised,
        recorded(ADA, "cancel"),
    ):
        begun.append("cancel")
    assert raised.value.__cause__ is None  # or else the API would call the outcome unknown
    assert caplog.text == ""
    with recorded(ADA, "clear", is_in_redis=True) as action:
        begun.append("clear")
        action.count = 3
    assert begun == ["clear"]
    assert caplog.text.count("An audit entry could not be stored") == 2
    assert '"count": 3' in caplog.text


@pytest.mark.parametrize("of", SYSTEMS_WITH_ITEMS, ids=lambda one: one.name)
def test_a_system_is_paused_and_resumed_without_mongodb(
    of: System, clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "begin", lambda *_, **__: _raise(AutoReconnect("away")))
    switches.pause_system(ADA, of, None)
    assert [*pauses.paused()] == [of.name]
    assert switches.resume_system(ADA, of.name)
    with pytest.raises(Unavailable, match="nothing was changed"):  # these pauses are in MongoDB
        switches.pause_jobs(ADA, ["mail"], None)


def test_a_user_without_rights_on_the_collection_can_act(
    clean: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit, "begin", lambda *_, **__: _raise(OperationFailure("not authorized", 13)))
    with recorded(ADA, "cancel", ids=["x"]):
        pass
    assert "not authorized" in caplog.text
    assert '"ids": ["x"], "total": 1, "outcome": "done"' in caplog.text


def test_a_record_that_is_too_large_for_mongodb_is_deleted_without_a_copy(
    clean: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    with recorded(ADA, "delete", is_in_redis=True) as action:
        keep = action.keeper("message")
        assert keep is not None
        large, small = [{"id": "large", "payload": "x" * 17 * 1024 * 1024}], [{"id": "small"}]
        keep(large)(large)
        before = action.undo
        keep(small)(small)
    assert before is None
    assert caplog.text.count("What an action deletes cannot be restored") == 1
    (entry,) = entries()
    assert (entry.outcome, action.undo) == ("done", entry.id)
    assert [record["id"] for found in archive.slices(ObjectId(entry.id)) for record in found.records] == ["small"]


@pytest.mark.parametrize(("count", "is_undoable"), [(None, True), (1, True), (0, False)])
def test_an_action_that_changed_nothing_cannot_be_undone(clean: Servers, count: int | None, is_undoable: bool) -> None:
    with recorded(ADA, "delete", is_in_redis=True) as action:
        keep = action.keeper("message")
        assert keep is not None
        keep([{"id": "a"}])
        action.count = count
    assert (action.undo is not None) == is_undoable
    assert (entries()[0].undo_until is not None) == is_undoable


def test_an_entry_is_kept_for_the_days_of_the_setting(clean: Servers, change_settings: Callable[..., None]) -> None:
    schema.migrate(SYSTEMS)
    change_settings(QM_AUDIT_DAYS="2")
    with recorded(ADA, "mark"):
        pass
    (entry,) = collection("qm_audit").find()
    assert entry["expires_at"] - entry["at"] == hours(48)
    assert collection("qm_audit").index_information()["audit_kept_until"]["expireAfterSeconds"] == 0


def test_texts_that_look_like_expressions_are_stored_as_they_are(clean: Servers) -> None:
    with recorded(ADA, "mark", detail="$$NOW", ids=["$at"]):
        pass
    assert [(entry.detail, entry.ids) for entry in entries()] == [("$$NOW", ["$at"])]


def test_commands_are_recorded(clean: Servers) -> None:
    run("systems", "pause", "support-snooze")
    run("systems", "resume", "support-snooze")
    run("alerts", "silence", "beat", "no-leader", "--reason", "a test")
    run("alerts", "unsilence", "beat", "no-leader")
    run("alerts", "unsilence", "beat", "no-leader", code=1)
    run("mark", "v1.4")
    run("jobs", "pause", "a", "b")
    run("jobs", "resume", "a")
    run("queue", "requeue")
    run("scan", "support-snooze")
    run("migrate")
    run("migrate", "--finish")
    found = entries()[::-1]
    assert [(one.action, one.system, one.count) for one in found] == [
        ("pause", "support-snooze", None),
        ("resume", "support-snooze", None),
        ("silence", "beat", None),
        ("unsilence", "beat", 1),
        ("unsilence", "beat", 0),
        ("mark", None, None),
        ("pause", "job-queues", None),
        ("resume", "job-queues", None),
        ("requeue", "overdue-messages", 0),
        ("scan", "support-snooze", 0),
        ("migrate", None, None),
        ("migrate", None, 0),
    ]
    assert {(one.who, one.via, one.outcome) for one in found} == {(getpass.getuser(), "cli", "done")}
    assert [one.detail for one in found if one.action in ("mark", "migrate")] == ["v1.4", "", "--finish"]
    assert [str(one.detail).endswith("Z; a test") for one in found if one.action == "silence"] == [True]
    assert [one.filter for one in found if one.system == "beat"] == [{"rule": "no-leader"}] * 3
    assert [one.filter for one in found if one.system == "job-queues"] == [{"names": "a, b"}, {"names": "a"}]


def test_the_command_lists_pages_and_refuses_wrong_options(clean: Servers) -> None:
    assert run("audit") == "no actions\n"
    for name in ("a", "b", "c"):
        run("jobs", "pause", name)
    shown = run("audit", "--action", "pause", "--limit", "2")
    assert "c" in shown
    cursor = shown.rpartition("--cursor ")[2].strip().strip("'")
    assert '"names": "a"' in run("audit", "--limit", "2", "--cursor", cursor)
    assert '"names": "c"' in run("audit", "show", entries()[0].id)
    for arguments, wrong in (
        (("--since", "yesterday"), "--since: 'yesterday' must be an ISO 8601 time"),
        (("--cursor", "x"), "--cursor: must be the cursor of an earlier page"),
        (("show", "x"), "There is no entry x in the audit"),
    ):
        assert f"queue-manager: {wrong}" in run("audit", *arguments, code=1 if "show" in arguments else 2)


def test_the_list_does_not_need_the_indexes(clean: Servers) -> None:
    collection(audit.AUDIT_COLLECTION).drop()
    try:
        with recorded(ADA, "mark", ids=["x"]):
            pass
        assert len(audit.of_id("x")) == len(entries()) == 1
    finally:
        schema.migrate(SYSTEMS)
