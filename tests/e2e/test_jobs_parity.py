"""`queue-manager jobs`: rescheduling, clearing, searching, exporting and measuring, as on the page."""

from __future__ import annotations

import csv
import json
import subprocess
from datetime import datetime

import pytest
from bson import ObjectId

from models import audit
from models import job as model
from models.audit import AuditQuery
from models.database import server_now
from models.job import JobState
from queue_manager.cli import job_changes
from queue_manager.cli.changes import TYPED_FROM
from queue_manager.cli.completion import complete_job_name, complete_job_state
from queue_manager.core.clock import hours, to_iso
from queue_manager.operations.job_schemas import job_as_json
from services.job_queues import jobs
from tests.any_jobs import INVOICE, REPORT, made
from tests.e2e.commands import invoke
from tests.real_servers import Servers

GONE = "0" * 24


def run(*arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    return invoke("jobs", *arguments, answer=answer)


def ids_of(*arguments: str) -> list[str]:
    result = run("list", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return [job["_id"] for job in json.loads(result.stdout)["jobs"]]


class TestReschedule:
    def test_time_and_priority_change_and_are_audited(self, clean: Servers) -> None:
        job, at = made(INVOICE, 1), to_iso(server_now() + hours(1))
        result = run("reschedule", str(job["_id"]), GONE, "--at", at, "--priority", "5")
        assert result.returncode == 1
        assert result.stdout.splitlines() == [f"{job['_id']}  due {at}, priority 5", f"{GONE}  There is no job {GONE}"]
        changed = jobs.get(str(job["_id"]))
        assert (to_iso(changed["due"]), changed["priority"]) == (at, 5)
        entries, _ = audit.page(AuditQuery(action="reschedule", id=str(job["_id"])), after=None, limit=9)
        assert [(one.via, one.before and one.before["priority"]) for one in entries] == [("cli", 0)]

    def test_priority_alone_keeps_the_state(self, clean: Servers) -> None:
        id = str(made(INVOICE, 1)["_id"])
        jobs.cancel(id)
        assert run("reschedule", id, "--priority", "5").stdout == f"{id}  canceled, priority 5\n"
        assert run("reschedule", id, "--delay", "60").stdout.startswith(f"{id}  due ")

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ([], "give --at, --delay or --priority"),
            (["--at", "soon"], "--at: "),
            (["--delay", "-1"], "--delay: must be 0 to "),
            (["--priority", "101"], "--priority: "),
        ],
    )
    def test_invalid_option_is_named(self, arguments: list[str], error: str, clean: Servers) -> None:
        result = run("reschedule", str(made(INVOICE, 1)["_id"]), *arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith(f"queue-manager: {error}")


class TestClear:
    def test_states_of_one_name_after_confirmation_and_undo(self, clean: Servers) -> None:
        kept, cleared = made(REPORT, 1), made(INVOICE, 1)
        canceled = made(INVOICE, 2)
        jobs.cancel(str(canceled["_id"]))
        refused = run("clear", "pending", "canceled", "--name", INVOICE, answer="n\n")
        assert refused.returncode == 1
        assert f"Delete 2 jobs of {INVOICE} in the state pending or canceled? [y/N]" in refused.stdout
        assert len(ids_of()) == 3
        done = run("clear", "pending", "canceled", "--name", INVOICE, answer="y\n")
        assert done.returncode == 0, done.stderr
        assert ids_of() == [str(kept["_id"])]
        undo = done.stdout.partition("queue-manager audit undo ")[2].split()[0]
        assert invoke("audit", "undo", undo).returncode == 0
        assert {str(one["_id"]) for one in (kept, cleared, canceled)} == set(ids_of())

    def test_state_given_by_both_of_its_names_is_counted_once(self, clean: Servers) -> None:
        jobs.cancel(str(made(INVOICE, 1)["_id"]))
        refused = run("clear", "canceled", "cancelled", answer="n\n")
        assert "Delete 1 job of all names in the state canceled or cancelled? [y/N]" in refused.stdout

    def test_name_is_typed_above_a_thousand(self, clean: Servers) -> None:
        jobs.run_many(INVOICE, [[number] for number in range(TYPED_FROM + 1)])
        refused = run("clear", "pending", answer="y\n")
        assert (refused.returncode, model.jobs().count_documents({})) == (1, TYPED_FROM + 1)
        assert "of all names in the state pending? Type all names to confirm" in refused.stdout
        assert run("clear", "pending", "--name", INVOICE, answer=f"{INVOICE}\n").returncode == 0
        assert model.jobs().count_documents({}) == 0

    @pytest.mark.parametrize(("count", "number"), [(2, "2 jobs"), (3, "more than 2 jobs")])
    def test_question_about_more_than_can_be_restored(
        self, clean: Servers, monkeypatch: pytest.MonkeyPatch, count: int, number: str
    ) -> None:
        monkeypatch.setattr(job_changes, "MAX_ARCHIVED", 2)
        for argument in range(count):
            made(INVOICE, argument)
        refused = run("clear", "pending", answer="n\n")
        assert f"Delete {number} of all names in the state pending? [y/N]" in refused.stdout

    def test_executing_jobs_are_never_deleted(self, clean: Servers) -> None:
        result = run("clear", "success", "--name", INVOICE)
        assert (result.returncode, result.stdout) == (0, f"no jobs of {INVOICE} in the state success to delete\n")
        result = run("clear", "executing", "--yes")
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("queue-manager: states: must be ")


class TestLists:
    def test_search_and_order(self, clean: Servers) -> None:
        low, high = made(INVOICE, "ada", priority=1), made(INVOICE, "grace", priority=5)
        assert ids_of("--search", "ADA") == [str(low["_id"])]
        assert ids_of("--sort", "priority") == [str(high["_id"]), str(low["_id"])]
        assert ids_of("--sort", "priority", "--ascending") == [str(low["_id"]), str(high["_id"])]
        assert run("list", "--sort", "age").returncode == 2

    def test_export(self, clean: Servers) -> None:
        made_jobs = [str(made(INVOICE, f"={number}")["_id"]) for number in range(3)]
        lines = run("export", "--state", "pending").stdout.splitlines()
        assert [json.loads(line)["_id"] for line in lines] == made_jobs[::-1]
        (first, *_) = csv.DictReader(run("export", "--format", "csv").stdout.splitlines())
        assert (first["_id"], first["arguments"], first["state"]) == (made_jobs[-1], '["=2"]', "pending")
        assert datetime.fromisoformat(first["due"])
        assert run("export", "--name", REPORT).stdout == ""

    def test_json_has_null_for_a_field_of_another_type_as_the_api_does(self, clean: Servers) -> None:
        job = made(INVOICE, 1)
        model.jobs().update_one({"_id": job["_id"]}, {"$set": {"due": "tomorrow"}})
        (listed,) = json.loads(run("list", "--json").stdout)["jobs"]
        exported = json.loads(run("export").stdout)
        shown = json.loads(run("show", str(job["_id"]), "--json").stdout)
        assert listed == exported == shown == job_as_json(jobs.get(str(job["_id"])))
        assert (shown["due"], shown["state"]) == (None, "pending")

    def test_latency_without_done_jobs(self, clean: Servers) -> None:
        made(INVOICE, 1)
        assert run("latency").stdout == "no job was done in the last 24 hours\n"
        found = json.loads(run("latency", "--json").stdout)
        assert found.keys() == {"names", "server_time"}
        assert found["names"] == {INVOICE: {"due_to_done": None, "wait": None, "run": None, "on_time": None}}


def test_names_and_states_are_completed(clean: Servers) -> None:
    made(INVOICE, 1)
    assert complete_job_name(INVOICE[:5]) == [INVOICE]
    assert complete_job_name("x") == []
    assert complete_job_state("e") == [JobState.EXECUTING]


@pytest.mark.parametrize("name", [r"test.\$(id)", "test;id;:", "test.`id`", "test id"])
def test_names_that_a_shell_would_execute_are_not_completed(clean: Servers, name: str) -> None:
    """Another program may store any name in the collection of jobs."""
    job = made(REPORT, 1)
    model.jobs().insert_one({**job, "_id": ObjectId(), "name": name})
    assert name in model.names()
    assert complete_job_name("") == complete_job_name("test") == [REPORT]
