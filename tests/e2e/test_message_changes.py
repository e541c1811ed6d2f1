"""`queue-manager queue`: adding, editing, moving, deleting and clearing messages, and their activity."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models import audit
from models.audit import AuditQuery
from queue_manager.cli.changes import TYPED_FROM
from queue_manager.core.settings import settings
from services.message_queue import (
    Json,
    MessageQueue,
    MessageState,
    NewMessage,
    QueueFull,
    QueueUnavailable,
    queue_admin,
)
from services.message_queue.admin import RESTORE_BATCH_SIZE, QueueAdmin
from services.message_queue.fields import MAX_ENQUEUED_MESSAGES
from services.message_queue.scripts import BULK_BATCH_SIZE, Argument, Scripts
from tests.e2e.commands import COMMAND, environment, interrupt_second_call, interrupted_after, invoke
from tests.eventually import eventually

INTERRUPTED = "queue-manager: interrupted; {} changed before; the outcome is unknown\n"
NASTY = '{ "n":1.50, "big":12345678901234567890.10 }'


def run(*arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    return invoke("queue", *arguments, answer=answer)


def add(queue: MessageQueue, number: int, type: str = "send_mail") -> list[str]:
    return [one.id for one in queue.enqueue_batch([NewMessage(type=type) for _ in range(number)])]


def state_of(id: str) -> MessageState | None:
    found = queue_admin().find_with_state(id)
    return found and found[0]


def last_audited() -> Any:
    entries, _ = audit.page(AuditQuery(), after=None, limit=1)
    return entries[0]


class TestAddAndEdit:
    def test_payload_is_kept_byte_for_byte(self, queue: MessageQueue) -> None:
        added = run("add", "send_mail", NASTY, "--priority", "3", "--max-attempts", "7", "--id", "mail-1")
        assert (added.returncode, added.stdout) == (0, "mail-1\n"), added.stderr
        message = queue_admin().find("mail-1")
        assert message is not None
        assert (message.type, message.priority, message.payload_json) == ("send_mail", 3, NASTY)
        assert message.fields["custom_max_attempts"] == 7

    @pytest.mark.parametrize("lost", [QueueUnavailable, KeyboardInterrupt])
    def test_message_of_a_lost_answer_is_added_once_by_the_command_that_the_error_names(
        self, lost: type[BaseException], queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def enqueue(*arguments: Any) -> None:
            original(*arguments)
            raise lost("Redis does not answer")

        original = MessageQueue.enqueue_batch
        with monkeypatch.context() as patch:
            patch.setattr(MessageQueue, "enqueue_batch", enqueue)
            added = run("add", "send_mail")
        assert added.stdout == ""
        assert "; the outcome is unknown; to try again without adding it twice, repeat the command with" in added.stderr
        repeated = run("add", "send_mail", *added.stderr.split()[-2:])
        assert repeated.stdout == f"{queue_admin().list('main').messages[0].id}\n"
        assert queue_admin().counts().main == 1

    def test_edit_changes_only_given_fields_and_is_audited(self, queue: MessageQueue) -> None:
        queue.enqueue("send_mail", Json("1"), id="mail-1", max_attempts=7)
        edited = run("edit", "mail-1", "--payload", NASTY, "--max-attempts", "default", "--ack-timeout", "1.5")
        assert edited.returncode == 0, edited.stderr
        assert f'"payload":{NASTY}' in edited.stdout
        message = queue_admin().find("mail-1")
        assert message is not None
        assert "custom_max_attempts" not in message.fields
        assert (message.type, message.fields["custom_ack_timeout"]) == ("send_mail", 1.5)
        entry = last_audited()
        assert (entry.action, entry.via, entry.ids, entry.after["payload"]) == ("edit", "cli", ["mail-1"], NASTY)
        assert json.loads(run("edit", "mail-1", "--type", "send_sms").stdout)["type"] == "send_sms"

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (["add", "x", "{"], "payload: must be JSON ("),
            (["add", "x", '1,"id":"y"'], "payload: must be JSON ("),
            (["add", ""], "type: must be "),
            (["add", "x", "--priority", "99"], "--priority: must be "),
            (["add", "x", "--ack-timeout", "soon"], "--ack-timeout: must be a number, or `default`"),
            (["add", "x", "--max-attempts", "0"], "--max-attempts: must be "),
            (["add", "x", "--id", "a b"], "id: must be 1 to 128 letters"),
            (["add", "x", "--ack-timeout", "nan"], "--ack-timeout: must be a number, or `default`"),
            (["add", "x", "--ack-timeout", ""], "--ack-timeout: must be a number, or `default`"),
            (["add", "x", "--id", ""], "id: must be 1 to 128 letters"),
            (["edit", "x"], "give --type, --payload, --priority, --ack-timeout or --max-attempts"),
            (["activity", "--action", "dlq, nack"], "--action: must be a comma-separated list of: "),
        ],
    )
    def test_invalid_field_is_named(self, arguments: list[str], error: str, queue: MessageQueue) -> None:
        result = run(*arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith(f"queue-manager: {error}")
        assert queue_admin().counts().main == 0

    def test_edit_of_unknown_or_held_message(self, queue: MessageQueue) -> None:
        assert run("edit", "gone", "--priority", "1").returncode == 1
        (id,) = add(queue, 1)
        queue.dequeue()
        held = run("edit", id, "--priority", "1")
        assert held.returncode == 1
        assert held.stderr.startswith(f"queue-manager: A consumer is processing the message {id}")


class TestMoveAndDelete:
    def test_move_by_id_and_back(self, queue: MessageQueue) -> None:
        one, other = add(queue, 2)
        moved = run("move", one, "gone", "--to", "dead", "--reason", "by mistake", "--yes")
        assert moved.returncode == 1
        assert moved.stdout.splitlines() == [
            f"{one}  moved",
            "gone  not moved: there is no such message",
            "1 of 2 moved",
        ]
        assert (state_of(one), state_of(other)) == ("dead", "main")
        assert "by mistake" in run("show", one).stdout
        entry = last_audited()
        assert (entry.action, entry.count, entry.detail) == ("move", 1, "to dead (by mistake)")
        assert run("move", "--all", "--state", "dead", "--to", "main", answer="y\n").returncode == 0
        assert state_of(one) == "main"

    def test_delete_by_filter_after_confirmation_and_undo(self, queue: MessageQueue) -> None:
        mails, (export,) = add(queue, 2), add(queue, 1, "export")
        refused = run("delete", "--all", "--state", "main", "--type", "send_mail", answer="n\n")
        assert refused.returncode == 1
        assert "Delete 2 messages? [y/N]" in refused.stdout
        deleted = run("delete", "--all", "--state", "main", "--type", "send_mail", answer="y\n")
        assert deleted.returncode == 0, deleted.stderr
        assert [state_of(id) for id in (*mails, export)] == [None, None, "main"]
        assert last_audited().filter == {"state": "main", "type": "send_mail"}
        undo = deleted.stdout.partition("queue-manager audit undo ")[2].split()[0]
        assert invoke("audit", "undo", undo).returncode == 0
        assert [state_of(id) for id in mails] == ["main", "main"]

    @pytest.mark.parametrize("problem", ["Broken pipe", "No space left on device"])
    def test_closed_output_or_full_disk_midway_reports_what_was_deleted_and_how_to_undo_it(
        self, queue: MessageQueue, problem: str
    ) -> None:
        ids = add(queue, BULK_BATCH_SIZE + 1)
        if problem == "Broken pipe":
            output, stdout = os.pipe()
            os.close(output)  # as by `| head -1`
        elif sys.platform == "darwin":
            pytest.skip("macOS has no /dev/full")
        else:
            stdout = os.open("/dev/full", os.O_WRONLY)
        command = [*COMMAND, "queue", "delete", *ids, "--yes"]
        deleted = subprocess.run(command, env=environment(), stdout=stdout, stderr=subprocess.PIPE, text=True)
        os.close(stdout)
        entry = last_audited()
        assert (deleted.returncode, deleted.stderr) == (
            1,
            f"queue-manager: cannot write: {problem}; {BULK_BATCH_SIZE} changed before; "
            f"to undo it within 10 minutes: queue-manager audit undo {entry.id}\n",
        )
        assert (entry.count, entry.total) == (BULK_BATCH_SIZE, BULK_BATCH_SIZE + 1)
        assert queue_admin().counts().main == 1

    def test_ctrl_c_midway_reports_what_was_deleted_and_how_to_undo_it(
        self, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = add(queue, 2 * BULK_BATCH_SIZE)
        interrupt_second_call(monkeypatch, QueueAdmin, "delete")
        deleted = run("delete", *ids, "--yes")
        entry = last_audited()
        assert (deleted.returncode, deleted.stderr) == (130, interrupted_after(BULK_BATCH_SIZE, entry.id))
        assert (entry.outcome, entry.count) == ("unknown", BULK_BATCH_SIZE)
        assert invoke("audit", "undo", entry.id).stdout == f"{BULK_BATCH_SIZE} restored\n"
        assert queue_admin().counts().main == 2 * BULK_BATCH_SIZE

    def test_undo_interrupted_by_full_memory_restores_each_message_once(
        self, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = add(queue, 2 * RESTORE_BATCH_SIZE)
        assert run("delete", *ids, "--yes").returncode == 0
        undo = ("audit", "undo", last_audited().id)
        original, restores = Scripts.run, 0

        def fail_at_the_second_restore(scripts: Scripts, name: str, *arguments: Argument) -> Any:
            nonlocal restores
            restores += name == "restore"
            if restores == 2:
                raise QueueFull("the memory is full")
            return original(scripts, name, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Scripts, "run", fail_at_the_second_restore)
            assert f"{RESTORE_BATCH_SIZE} changed before" in invoke(*undo).stderr
        restored = [id for id in ids if state_of(id) == "main"]
        assert len(restored) == RESTORE_BATCH_SIZE
        queue_admin().delete(restored)  # handled meanwhile, and no longer in the history
        assert invoke(*undo).stdout == f"{RESTORE_BATCH_SIZE} restored\n"
        assert {id for id in ids if state_of(id) == "main"} == {*ids} - {*restored}

    def test_ctrl_c_during_an_import_reports_what_was_added(
        self, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        lines = "".join(f'{{"type": "mail", "id": "{number}"}}\n' for number in range(MAX_ENQUEUED_MESSAGES + 1))
        (tmp_path / "mail.jsonl").write_text(lines)
        interrupt_second_call(monkeypatch, MessageQueue, "enqueue_batch")
        imported = run("import", str(tmp_path / "mail.jsonl"))
        assert (imported.returncode, imported.stderr) == (130, INTERRUPTED.format(MAX_ENQUEUED_MESSAGES))
        assert last_audited().count == MAX_ENQUEUED_MESSAGES

    def test_ctrl_c_during_a_sweep_reports_what_was_requeued(
        self, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batch_size = settings().requeue_batch_size
        queue.enqueue_batch([NewMessage(type="mail", ack_timeout=0.001) for _ in range(batch_size + 1)])
        while queue.receive_many(BULK_BATCH_SIZE):
            pass
        eventually(lambda: queue_admin().counts().overdue > batch_size)
        interrupt_second_call(monkeypatch, Scripts, "run")
        swept = run("requeue")
        assert (swept.returncode, swept.stderr) == (130, INTERRUPTED.format(batch_size))
        assert last_audited().count == batch_size

    def test_ctrl_c_during_a_clear_reports_how_to_undo_it(
        self, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, another = add(queue, 2)
        queue_admin().move([another], to="dead")
        interrupt_second_call(monkeypatch, QueueAdmin, "_outcomes")
        cleared = run("clear", "--all", "--yes")
        assert (cleared.returncode, cleared.stderr) == (130, interrupted_after(1, last_audited().id))
        assert (state_of(one) is None) != (state_of(another) is None)

    def test_messages_are_filtered_by_time(self, queue: MessageQueue) -> None:
        (id,) = add(queue, 1)
        assert run("delete", "--all", "--state", "main", "--until", "2026-01-31T00:00Z").stdout == (
            "no messages to delete\n"
        )
        assert id in run("list", "main", "--since", "2026-01-31T00:00Z").stdout
        assert run("count", "--until", "2026-01-31T00:00Z").stdout == "0\n"
        assert run("count", "--until", "soon").stderr.startswith("queue-manager: --until: must be ISO 8601")

    def test_dates_without_separators_and_years_are_not_numbers_of_seconds(self, queue: MessageQueue) -> None:
        (id,) = add(queue, 1)
        every = ("delete", "--all", "--state", "main", "--yes")
        for wrong in ("7", "2026", "202601", "-20260131", "99999999", "202601310930", "20260131093015"):
            refused = run(*every, f"--since={wrong}")
            assert refused.returncode == 2
            assert refused.stderr.startswith("queue-manager: --since: must be ISO 8601, such as 2026-01-31T09:30Z, or")
        for filters in (("--since", "20991231"), ("--until", "20200131")):
            assert run(*every, *filters).stdout == "no messages to delete\n"
        assert id in run("list", "main", "--since", "20200131", "--until", "20991231").stdout

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (["delete"], "give ids of messages, or --all"),
            (["delete", "a", "--all", "--state", "main"], "give ids of messages, or --all"),
            (["delete", "a", "--type", "x"], "give ids of messages, or --all"),
            (["delete", "--all"], "--state: must be main, dead, acknowledged or archived together with --all"),
            (["move", "a", "--to", "dead", "--state", "dead"], "--to: must be another state than --state"),
            (["clear"], "give a state, or --all"),
            (["clear", "dead", "--all"], "give a state, or --all"),
        ],
    )
    def test_missing_or_conflicting_arguments_are_named(
        self, arguments: list[str], error: str, queue: MessageQueue
    ) -> None:
        result = run(*arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith(f"queue-manager: {error}")


class TestClear:
    def test_one_state_after_confirmation(self, queue: MessageQueue) -> None:
        waiting, dead = add(queue, 2)
        queue_admin().move([dead], to="dead")
        assert run("clear", "main", answer="n\n").returncode == 1
        assert state_of(waiting) == "main"
        cleared = run("clear", "main", answer="y\n")
        assert cleared.returncode == 0, cleared.stderr
        assert "1 deleted\nTo undo it within 10 minutes: queue-manager audit undo " in cleared.stdout
        assert (state_of(waiting), state_of(dead)) == (None, "dead")
        assert run("clear", "--all", "--yes").stdout.startswith("1 deleted\n")

    @pytest.mark.parametrize("options", [[], ["--yes"]])
    def test_an_empty_state_needs_no_confirmation(self, options: list[str], queue: MessageQueue) -> None:
        cleared = run("clear", "main", *options)
        assert (cleared.returncode, cleared.stdout) == (0, "no messages in main to delete\n")

    def test_name_is_typed_above_a_thousand(self, queue: MessageQueue) -> None:
        for _ in range(3):
            add(queue, 400)
        refused = run("clear", "main", answer="y\n")
        assert refused.returncode == 1
        assert f"Delete {3 * 400:,} messages in main? Type main to confirm" in refused.stdout
        assert queue_admin().counts().main == 1_200 > TYPED_FROM
        assert run("clear", "main", answer="main\n").returncode == 0
        assert queue_admin().counts().main == 0


class TestQueries:
    def test_status_and_config(self, queue: MessageQueue) -> None:
        queue.enqueue("send_mail", priority=5)
        assert run("status").stdout.splitlines()[1] == "waiting: 1 of priority 5"
        assert json.loads(run("status", "--json").stdout)["main"] == 1
        assert json.loads(run("config").stdout)["max_priority_levels"] > 5

    def test_list_is_sorted_and_count_filters(self, queue: MessageQueue) -> None:
        for priority in (1, 3, 2):
            queue.enqueue("send_mail", priority=priority, id=f"p{priority}")
        found = json.loads(run("list", "--sort", "priority", "--ascending", "--json").stdout)["messages"]
        assert [message["id"] for message in found] == ["p1", "p2", "p3"]
        assert run("count", "main", "--priority", "3").stdout == "1\n"
        assert run("list", "--sort", "age").stderr == (
            "queue-manager: --sort: must be created_at or priority in main\n"
        )

    def test_activity_is_filtered(self, queue: MessageQueue) -> None:
        (id,) = add(queue, 1)
        queue.dequeue(consumer_id="mailer-1")
        logs = json.loads(run("activity", "--message", id, "--action", "dequeue", "--json").stdout)["logs"]
        assert [(one["message_id"], one["consumer_id"]) for one in logs] == [(id, "mailer-1")]
        shown = run("activity", "--consumer", "mailer-1").stdout
        assert "mailer-1" in shown
        assert re.search(r"dequeue  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC", shown)
        assert run("activity", "--consumer", "nobody").stdout == "no entries\n"

    def test_activity_has_the_states_of_a_move_and_its_size(self, queue: MessageQueue) -> None:
        ids = [queue.enqueue("send_mail", Json('"four"')) for _ in range(2)]
        queue_admin().move(ids, to="archived", source="main", reason="old")
        moves = json.loads(run("activity", "--action", "move", "--json").stdout)["logs"]
        assert [(one["source_queue"], one["dest_queue"], one["batch_size"]) for one in moves] == [
            ("main", "archived", 2)
        ] * 2
        (added,) = json.loads(run("activity", "--message", ids[0], "--action", "enqueue", "--json").stdout)["logs"]
        assert added["payload_size_bytes"] == 6

    def test_message_with_line_breaks_in_its_payload_is_exported_as_one_line(
        self, queue: MessageQueue, tmp_path: Path
    ) -> None:
        payloads = [Json('{"a":\n1}'), Json('[\n{"type":"pay"}\r\n]'), Json('\r"\\n"\r')]
        queue.enqueue_batch([NewMessage(type="mail", payload=one, id=f"{at}") for at, one in enumerate(payloads)])
        exported = run("export", "main").stdout
        (tmp_path / "main.jsonl").write_text(exported)
        assert [json.loads(line)["id"] for line in exported.splitlines()] == ["0", "1", "2"]
        assert run("clear", "main", "--yes").returncode == 0
        imported = run("import", str(tmp_path / "main.jsonl"))
        assert (imported.returncode, imported.stdout) == (0, "3 imported, 0 already present, 0 undecodable\n")
        assert [one.payload for one in queue.receive_many(10)] == [{"a": 1}, [{"type": "pay"}], "\n"]

    def test_export_as_csv_has_no_formula(self, queue: MessageQueue) -> None:
        queue.enqueue("=1+1", {"a": 1}, id="mail-1")
        (row,) = csv.DictReader(run("export", "main", "--format", "csv").stdout.splitlines())
        assert (row["id"], row["type"], row["payload"]) == ("mail-1", "'=1+1", '{"a":1}')

    def test_export_as_csv_has_numbers_as_they_are_written(self, queue: MessageQueue) -> None:
        payloads = ['{"amount":12345678901234567890.12,"x":1e400,"y":1.10}', "9" * 4_301, "-0.0", "null"]
        queue.enqueue_batch([NewMessage(type="mail", payload=Json(payload)) for payload in payloads])
        exported = run("export", "main", "--format", "csv")
        assert exported.returncode == 0, exported.stderr
        rows = csv.DictReader(exported.stdout.splitlines())
        assert [row["payload"] for row in rows] == [*payloads[:-1], ""]
