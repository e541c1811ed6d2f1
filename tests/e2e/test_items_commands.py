"""`queue-manager items`: as a user sees it, also for a system of the user's own."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from models import audit
from models.audit import AuditQuery
from models.database import collection, server_now
from queue_manager.cli import items as command
from queue_manager.core.clock import hours, seconds
from queue_manager.core.settings import settings
from queue_manager.operations import items as operations
from tests.e2e.celery_processes import ROOT
from tests.e2e.commands import COMMAND, environment, invoke, said_on_a_terminal
from tests.e2e.test_systems_commands import EXPIRE, declare
from tests.real_servers import Servers
from tests.rooms import make_room, make_work, scan
from tests.tasks.hand_worker import waiting_messages

HOSTILE = "\x1b[31mred [bold]x[/]"
GONE = "0" * 24
ROOMS = "support-snooze"


def items(*arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    return invoke("items", *arguments, answer=answer)


def printed(*arguments: str) -> Any:
    """Return the JSON that a command printed, which must have succeeded."""
    result = items(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


def listed(*arguments: str) -> list[str]:
    return [item["id"] for item in printed("list", *arguments, "--json")["items"]]


def due_room(ago: timedelta = seconds(100)) -> ObjectId:
    return make_room(server_now() - ago)


def failed_room(error: str) -> str:
    work = make_work(server_now)
    due_room(seconds(300))
    (item,) = scan(work)
    work.give_up(item, error=error)
    return str(item.args[0])


def sent() -> set[str]:
    return {message.args[0] for message in waiting_messages(settings().redis_url, ROOMS)}


class TestList:
    @pytest.mark.slow
    def test_items_in_a_state_with_search_and_cursor(self, clean: Servers) -> None:
        failed = failed_room("Boom: the socket broke")
        older, newer = due_room(seconds(200)), due_room(seconds(100))
        make_room(server_now() + hours(1))
        assert listed(ROOMS) == [str(newer), str(older)]
        assert listed(ROOMS, "due", "--oldest-first") == [str(older), str(newer)]
        assert listed(ROOMS, "failed", "--search", "SOCKET") == [failed]
        assert listed(ROOMS, "failed", "--search", "timeout") == []
        page = printed("list", ROOMS, "--limit", "1", "--json")
        assert listed(ROOMS, "--limit", "1", "--cursor", page["cursor"]) == [str(older)]
        assert items("count", ROOMS).stdout == "2\n"
        assert items("count", ROOMS, "failed", "--search", "timeout").stdout == "0\n"

    def test_table_has_columns_of_the_state_and_the_next_page(self, clean: Servers) -> None:
        id = failed_room(HOSTILE)
        due_room(), due_room()
        table = items("list", ROOMS, "failed").stdout
        assert table.splitlines()[0].split()[:3] == ["id", "title", "state"]
        assert {"in this state since", "times failed"} <= set(re.split(r"\s{2,}", table.splitlines()[0]))
        assert id in table
        page = items("list", ROOMS, "--limit", "1").stdout
        cursor = page.partition("more results: --cursor ")[2].strip().strip("'")
        assert len(listed(ROOMS, "--cursor", cursor)) == 1
        assert items("list", ROOMS, "failed", "--search", "nothing").stdout == "no items\n"

    @pytest.mark.processes
    def test_reason_cannot_send_escape_sequences_to_a_terminal(self, clean: Servers) -> None:
        failed_room(HOSTILE)
        shown = said_on_a_terminal([*COMMAND, "items", "list", ROOMS, "failed"])
        assert "[bold]" in shown
        assert "\x1b[31mred" not in shown

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (["nonsense"], "There is no system 'nonsense'; the systems are: "),
            (["suport-snooze"], "There is no system 'suport-snooze' (did you mean support-snooze?); the systems are: "),
            (["overdue-messages"], "The system overdue-messages lists no items"),
            ([ROOMS, "--cursor", "x"], "--cursor: must be the cursor of an earlier page of the same list"),
        ],
    )
    def test_invalid_argument_is_named(self, arguments: list[str], error: str, clean: Servers) -> None:
        result = items("list", *arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith(f"queue-manager: {error}")


class TestShow:
    def test_why_with_timeline_and_document(self, clean: Servers) -> None:
        id = failed_room("Boom: the socket broke")
        shown = items("show", ROOMS, id)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.startswith(f"room {id}")
        assert "Boom: the socket broke" in shown.stdout
        (found,) = printed("show", ROOMS, id, "--json")["found"]
        assert (found["id"], found["system"]) == (id, ROOMS)
        assert printed("show", ROOMS, id, "--document")["document"]["_id"] == {"$oid": id}

    def test_unknown_id(self, clean: Servers) -> None:
        shown = items("show", ROOMS, GONE)
        assert (shown.returncode, shown.stdout) == (1, f"No item, message, job or task has the id {GONE}.\n")
        document = items("show", ROOMS, GONE, "--document")
        assert (document.returncode, document.stdout) == (1, "")
        assert document.stderr == f"queue-manager: There is no item '{GONE}'\n"


class TestRetry:
    def test_items_by_id_are_sent_once_and_audited(self, clean: Servers) -> None:
        failed, due = failed_room("Boom"), str(due_room())
        later = str(make_room(server_now() + hours(1)))
        first = items("retry", ROOMS, failed, due, later)
        assert (first.returncode, first.stdout) == (1, "2 of 3 dispatched\n"), first.stderr
        assert first.stderr == "the others are in progress or not due, or there are no such items\n"
        assert sent() == {failed, due}
        assert items("retry", ROOMS, failed).stdout == "0 of 1 dispatched\n"
        (_, entry), _ = audit.page(AuditQuery(action="retry"), after=None, limit=10)
        assert (entry.via, entry.system, entry.count, entry.total) == ("cli", ROOMS, 2, 3)
        assert set(entry.ids) == {failed, due}  # `later` was left alone

    def test_the_audit_has_the_ids_of_lists(self, clean: Servers) -> None:
        make_room(server_now() - seconds(1), _id="aB3")
        assert items("retry", ROOMS, "aB3").returncode == 0
        ((entry,), _) = audit.page(AuditQuery(action="retry"), after=None, limit=10)
        assert entry.ids == ['"aB3"']

    def test_items_of_a_state_are_sent_after_confirmation(self, clean: Servers) -> None:
        nothing = items("retry", ROOMS, "--state", "failed")
        assert (nothing.returncode, nothing.stdout) == (0, f"no items of {ROOMS} to dispatch\n")
        broken, slow = failed_room("Boom: the socket broke"), failed_room("timeout")
        refused = items("retry", ROOMS, "--state", "failed", "--search", "socket", answer="n\n")
        assert refused.returncode == 1
        assert f"Dispatch 1 item of {ROOMS}?" in refused.stdout
        assert sent() == set()
        assert items("retry", ROOMS, "--state", "failed", "--search", "socket", answer="y\n").returncode == 0
        assert sent() == {broken}
        assert items("retry", ROOMS, "--state", "failed", "--yes").stdout == "1 of 1 dispatched\n"
        assert sent() == {broken, slow}

    def test_a_part_of_too_many_items_is_announced_as_such(
        self, clean: Servers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (operations, command):
            monkeypatch.setattr(module, "MAX_RETRIED", 2)
        for _ in range(3):
            due_room()
        first = items("retry", ROOMS, "--state", "due", answer="y\n")
        assert f"Dispatch 2 of 3 items of {ROOMS}?" in first.stdout
        assert first.stdout.endswith("2 of 3 dispatched\n")
        assert (first.returncode, first.stderr) == (1, "run the command again for the rest\n")
        last = items("retry", ROOMS, "--state", "due", answer="y\n")
        assert f"Dispatch 1 item of {ROOMS}?" in last.stdout
        assert (last.returncode, len(sent())) == (0, 3)

    def test_a_part_of_too_many_items_is_the_oldest_which_fail_again_as_the_newest(
        self, clean: Servers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (operations, command):
            monkeypatch.setattr(module, "MAX_RETRIED", 2)
        first, second, _newest = (failed_room("Boom") for _ in range(3))
        assert items("retry", ROOMS, "--state", "failed", "--yes").stdout == "2 of 3 dispatched\n"
        assert sent() == {first, second}

    def test_an_incomplete_search_without_matches_is_an_error(
        self, clean: Servers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(operations, "SEARCH_TIMEOUT", 0.0)
        due_room()
        result = items("retry", ROOMS, "--state", "due", "--yes")
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == f"queue-manager: no items of {ROOMS} were found in 0 s; some may match\n"

    @pytest.mark.parametrize("arguments", [[], [GONE, "--state", "failed"], [GONE, "--search", "x"]])
    def test_ids_or_state_must_be_given(self, arguments: list[str], clean: Servers) -> None:
        result = items("retry", ROOMS, *arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == "queue-manager: give ids of items, or --state, optionally with --search\n"


class TestExport:
    def test_json_lines_have_all_pages(self, clean: Servers) -> None:
        rooms = [str(due_room(seconds(number + 1))) for number in range(205)]
        lines = items("export", ROOMS).stdout.splitlines()
        assert [json.loads(line)["id"] for line in lines] == rooms

    def test_csv_has_no_formula(self, clean: Servers) -> None:
        id = failed_room('=cmd("x"), then')
        (row,) = csv.DictReader(items("export", ROOMS, "failed", "--format", "csv").stdout.splitlines())
        assert (row["id"], row["state"], row["reason"]) == (id, "failed", '\'=cmd("x"), then')


@pytest.mark.processes
def test_system_of_the_users_own(clean: Servers, tmp_path: Path) -> None:
    declare(tmp_path, EXPIRE)
    env = environment(PYTHONPATH=f"{ROOT}:{tmp_path}", QM_SYSTEMS='["trials"]')

    def printed_by(*arguments: str) -> str:
        return subprocess.run(
            [*COMMAND, *arguments], env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    printed_by("migrate")
    collection("accounts").insert_one({"_id": "ada", "status": "trial", "trial_ends_at": server_now() - seconds(9)})
    try:
        (due,) = json.loads(printed_by("items", "list", "trial-end", "--json"))["items"]
        assert printed_by("items", "show", "trial-end", due["id"]).startswith('item "ada"  due\n')
        assert printed_by("items", "retry", "trial-end", due["id"]) == "1 of 1 dispatched\n"
        assert due["id"] in printed_by("items", "list", "trial-end", "in-progress")
    finally:
        collection("accounts").drop()
