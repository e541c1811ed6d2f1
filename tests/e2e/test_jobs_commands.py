"""`queue-manager jobs`: as a user sees it, in a pipe and on a terminal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from dev.ports import free_port
from models import audit, database, job_attempt, job_queue
from models import foreign_job as foreign_job_model
from models import job as model
from models.database import Document, collection, server_now
from models.job import JobState
from queue_manager.core.clock import minutes, seconds, to_iso
from queue_manager.telemetry import counters, latency
from services.job_queues import JOBS_INITIATOR, adoption, jobs
from tests.any_jobs import IMPORT, INVOICE, MODULE, PARCEL, REPORT, made
from tests.e2e.commands import COMMAND, environment, interrupt_second_call, invoke, queue_manager, said_on_a_terminal
from tests.foreign_jobs import TEXT_ID, add_foreign_jobs, foreign_job
from tests.job_lab import end_job
from tests.real_servers import Servers

NASTY = "[red]\x1b[31m \x9b31m \x7f \u202e"
GONE = "0" * 24


@pytest.fixture(autouse=True)
def imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_IMPORTS", json.dumps([MODULE]))


def run(*arguments: str, columns: int = 200) -> subprocess.CompletedProcess[str]:
    return invoke("jobs", *arguments, columns=columns)


def printed(*arguments: str) -> Any:
    """Return the JSON that a command printed, which must have succeeded."""
    result = run(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


def begin(job: Document) -> None:
    assert job_attempt.start(job, token="worker", now=server_now(), until=server_now() + seconds(30))


class TestRun:
    def test_run_stores_the_job_and_prints_it(self, clean: Servers) -> None:
        job = printed("run", INVOICE, "42", '{"a": [1.5, null]}', "x y", "NaN", "1e400", '"7"', "--priority", "3")
        stored = jobs.get(job["_id"])
        assert stored["arguments"] == job["arguments"] == [42, {"a": [1.5, None]}, "x y", "NaN", "1e400", "7"]
        assert (stored["priority"], stored["state"]) == (3, JobState.PENDING)

    def test_run_accepts_a_time_or_a_delay(self, clean: Servers) -> None:
        at = to_iso(server_now() + seconds(90))
        assert printed("run", INVOICE, "--at", at)["due"] == at
        assert to_iso(server_now() + seconds(50)) < printed("run", INVOICE, "--delay", "60")["due"]

    def test_run_accepts_a_repetition(self, clean: Servers) -> None:
        assert printed("run", INVOICE, "1", "--every", "90")["repetition"]["every_ms"] == 90_000
        assert printed("run", INVOICE, "2", "--cron", "0 3 * * *")["repetition"]["cron"] == "0 3 * * *"

    def test_negative_numbers_are_given_after_two_dashes(self, clean: Servers) -> None:
        assert printed("run", INVOICE, "--", "-5")["arguments"] == [-5]

    @pytest.mark.parametrize("option", ["--unique", "--singular"])
    def test_blocked_job_is_reported(self, option: str, clean: Servers) -> None:
        made(INVOICE, 1, unique=option == "--unique", singular=option == "--singular")
        result = run("run", INVOICE, "1", option)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == f"queue-manager: blocked: a job {INVOICE} with these arguments already exists\n"

    def test_an_unknown_name_lists_the_known_ones(self, clean: Servers) -> None:
        result = run("run", "send_invoice")
        assert (result.returncode, result.stdout) == (1, "")
        problem, _, known = result.stderr.rstrip().partition("; the jobs are: ")
        assert problem == f"queue-manager: There is no job 'send_invoice' (did you mean {INVOICE}?)"
        assert {INVOICE, REPORT} <= {*known.split(", ")}

    @pytest.mark.parametrize(
        "arguments",
        [
            ["a b"],
            ["\x1b[31m"],
            [INVOICE, "9" * 30],
            [INVOICE, "\udcff"],
            [INVOICE, "[" * 100 + "]" * 100],
            [INVOICE, "--at", "soon"],
            [INVOICE, "--at", "2030-01-01T00:00:00"],
            [INVOICE, "--at", "2030-01-01T00:00:00Z", "--delay", "1"],
            [INVOICE, "--delay", "nan"],
            [INVOICE, "--delay", "1e300"],
            [INVOICE, "--delay=-1"],
            [INVOICE, "--priority", "101"],
            [INVOICE, "--priority", "9" * 30],
        ],
        ids=lambda arguments: " ".join(arguments)[-30:].encode("ascii", "replace").decode(),
    )
    def test_invalid_arguments_are_refused(self, arguments: list[str], clean: Servers) -> None:
        result = run("run", *arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("queue-manager: ")
        assert result.stderr.count("\n") == 1
        assert model.jobs().count_documents({}) == 0


class TestList:
    def test_newest_first(self, clean: Servers) -> None:
        first, second = made(INVOICE, {"to": "ada"}, priority=5), made(REPORT, 2026, delay=seconds(500))
        title, upper, lower = run("list").stdout.splitlines()
        assert title.split() == ["id", "name", "state", "priority", "attempts", "due", "last", "error", "arguments"]
        assert upper.split() == [str(second["_id"]), REPORT, "pending", "0", "0", "in", "8", "min", "[2026]"]
        assert lower.split()[:5] == [str(first["_id"]), INVOICE, "pending", "5", "0"]
        assert lower.rstrip().endswith('[{"to": "ada"}]')

    def test_an_id_can_be_copied_from_a_narrow_terminal(self, clean: Servers) -> None:
        id = str(made(INVOICE, 1)["_id"])
        assert id in run("list", columns=80).stdout

    def test_a_page_prints_the_cursor_of_the_next(self, clean: Servers) -> None:
        ids = [str(made(INVOICE, number)["_id"]) for number in range(3)]
        page = run("list", "--limit", "2").stdout
        cursor = page.partition("more results: --cursor ")[2].strip()
        assert [id in page for id in ids] == [False, True, True]
        rest = printed("list", "--cursor", cursor, "--json")
        assert ([job["_id"] for job in rest["jobs"]], rest["cursor"]) == ([ids[0]], None)

    def test_list_is_filtered_by_name_and_state(self, clean: Servers) -> None:
        canceled, _ = made(INVOICE, 1), made(REPORT, 2)
        jobs.cancel(canceled["_id"])
        for narrowed in (["--state", "cancelled"], ["--name", INVOICE]):
            assert [job["_id"] for job in printed("list", "--json", *narrowed)["jobs"]] == [str(canceled["_id"])]
        assert run("list", "--state", "failure").stdout == "no jobs\n"

    @pytest.mark.parametrize("arguments", [["--state", "x"], ["--name", "a b"], ["--cursor", "x"], ["--limit", "0"]])
    def test_invalid_arguments_are_refused(self, arguments: list[str], clean: Servers) -> None:
        result = run("list", *arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert "Traceback" not in result.stderr


class TestShow:
    def test_everything_of_a_job(self, clean: Servers) -> None:
        job = made(INVOICE, {"to": "ada"}, priority=7)
        jobs.cancel(job["_id"])
        lines = run("show", str(job["_id"])).stdout.splitlines()
        for name, value in (("name", INVOICE), ("arguments", '[{"to": "ada"}]'), ("priority", "7")):
            assert f"{name:<12}{value}" in lines
        history = [line.split()[1] for line in lines[lines.index("history") + 1 :]]
        assert history == ["pending", "canceled"]
        assert printed("show", str(job["_id"]), "--json")["state"] == "canceled"

    def test_an_unknown_id_is_one_line(self, clean: Servers) -> None:
        for id, code, said in ((GONE, 1, f"There is no job {GONE}"), ("x", 2, "id: 'x' is not a job id; must be")):
            result = run("show", id)
            assert (result.returncode, result.stdout) == (code, "")
            assert result.stderr.startswith(f"queue-manager: {said}")


class TestChanging:
    def test_cancel_prints_the_result_of_each_job(self, clean: Servers) -> None:
        waits, runs = made(INVOICE, 1), made(REPORT, 2)
        begin(runs)
        result = run("cancel", str(waits["_id"]), str(runs["_id"]), GONE)
        assert result.returncode == 1
        assert result.stdout.splitlines() == [
            f"{waits['_id']}  canceled",
            f"{runs['_id']}  stopping",
            f"{GONE}  There is no job {GONE}",
        ]

    def test_remove_deletes_all_but_the_executing(self, clean: Servers) -> None:
        waits, runs = made(INVOICE, 1), made(REPORT, 2)
        begin(runs)
        result = run("remove", str(waits["_id"]), str(runs["_id"]))
        (entry,) = collection("qm_audit").distinct("_id", {"action": "remove", "outcome": "done"})
        assert (result.returncode, result.stdout.splitlines()) == (
            1,
            [
                f"{waits['_id']}  removed",
                f"To undo it within 10 minutes: queue-manager audit undo {entry}",
                f"{runs['_id']}  The job {runs['_id']} is executing and cannot be removed",
            ],
        )
        assert model.jobs().count_documents({}) == 1

    def test_retry_makes_it_due_now(self, clean: Servers) -> None:
        job = made(delay=seconds(500))
        result = run("retry", str(job["_id"]))
        assert (result.returncode, result.stdout) == (0, f"{job['_id']}  due now\n")
        assert jobs.get(job["_id"])["due"] < server_now() + seconds(1)

    def test_successful_job_is_run_again_only_alone(self, clean: Servers) -> None:
        done, failed = (str(made(INVOICE, number)["_id"]) for number in range(2))
        end_job(done, JobState.SUCCESS)
        end_job(failed, JobState.FAILURE)
        result = run("retry", done, failed)
        assert (result.returncode, result.stdout.splitlines()) == (
            1,
            [
                f"{done}  The job {done} is success and was to be retried only if pending or failure or canceled",
                f"{failed}  due now",
            ],
        )
        ((entry,), _) = audit.page(audit.AuditQuery(id=failed), after=None, limit=2)
        assert [(values or {}).get("state") for values in (entry.before, entry.after)] == ["failure", "pending"]
        assert run("retry", done).stdout == f"{done}  due now\n"

    def test_retry_of_a_singular_job_is_blocked_by_another(self, clean: Servers) -> None:
        first = made(INVOICE, 1, singular=True)
        jobs.cancel(first["_id"])
        made(INVOICE, 1, singular=True)
        result = run("retry", str(first["_id"]))
        assert result.returncode == 1
        assert "is singular, and another" in result.stdout

    @pytest.mark.parametrize(("command", "outcome"), [("retry", "due now"), ("remove", "removed")])
    def test_jobs_after_a_locked_one_are_changed(self, command: str, outcome: str, clean: Servers) -> None:
        first, locked, last = (jobs.cancel(made(INVOICE, number)["_id"])["_id"] for number in range(3))
        with database.client().start_session() as session, session.start_transaction():
            model.jobs().update_one({"_id": locked}, {"$set": {"priority": 1}}, session=session)
            result = run(command, str(first), str(locked), str(last))
        assert (result.returncode, result.stderr) == (1, "")
        assert [line for line in result.stdout.splitlines() if not line.startswith("To undo")] == [
            f"{first}  {outcome}",
            f"{locked}  other transactions hold the document; try again",
            f"{last}  {outcome}",
        ]
        assert [entry["outcome"] for entry in collection("qm_audit").find().sort("_id")] == ["done", "failed", "done"]

    def test_pause_and_resume(self, clean: Servers) -> None:
        assert run("pause", INVOICE, REPORT).stdout == f"{INVOICE}  paused\n{REPORT}  paused\n"
        assert run("resume", REPORT).stdout == f"{REPORT}  resumed\n"
        assert {*job_queue.pauses()} == {INVOICE}
        assert run("pause", INVOICE, "--reason", "a refund runs").stdout == f"{INVOICE}  paused\n"
        made = job_queue.pauses()[INVOICE]
        assert (made.by, made.reason) == ("command line", "a refund runs")
        assert " by command line: a refund runs\n" in run("status").stdout
        refused = run("pause", INVOICE, "a b")
        assert (refused.returncode, refused.stdout) == (2, "")

    def test_misspelled_names_are_paused_with_a_warning(self, clean: Servers) -> None:
        made(INVOICE, 1)
        paused = invoke("jobs", "pause", INVOICE, "send_invoce")
        assert (paused.returncode, paused.stdout) == (
            0,
            f"{INVOICE}  paused\nsend_invoce  paused, but there is no job and no function of this name "
            f"(did you mean {INVOICE}?)\n",
        )
        assert {*job_queue.pauses()} == {INVOICE, "send_invoce"}
        resumed = invoke("jobs", "resume", REPORT, INVOICE)
        assert (resumed.returncode, resumed.stdout) == (0, f"{REPORT}  was not paused\n{INVOICE}  resumed\n")

    def test_misspelled_names_and_states_get_a_suggestion(self, clean: Servers) -> None:
        made(INVOICE, 1)
        listed = invoke("jobs", "list", "--name", "test.send_invoce")
        assert listed.stdout == (f"no jobs: no job has the name 'test.send_invoce' (did you mean {INVOICE}?)\n")
        assert invoke("jobs", "list", "--name", REPORT).stdout == "no jobs\n"
        for arguments, field in ((["list", "--state", "sucess"], "--state"), (["clear", "sucess", "--yes"], "STATE")):
            refused = invoke("jobs", *arguments)
            assert (refused.returncode, refused.stdout) == (2, "")
            said = f"queue-manager: {field}: 'sucess' is not a state (did you mean success?); must be one of pending, "
            assert refused.stderr.startswith(said)

    @pytest.mark.parametrize("command", ["cancel", "retry", "remove", "pause", "resume", "show", "run"])
    def test_an_argument_is_required(self, command: str) -> None:
        assert run(command).returncode == 2


class TestStatus:
    def test_each_name_in_a_row_below_the_leader(self, clean: Servers) -> None:
        job_queue.lead(3, now=server_now() - minutes(30))
        runs = made(INVOICE, 1)
        made(INVOICE, 2)
        made(INVOICE, 3, delay=seconds(500))
        begin(runs)
        model.jobs().update_one({"_id": runs["_id"]}, {"$set": {"claim.worker": "here:1"}})
        jobs.pause([REPORT])
        leader, title, *rows = run("status").stdout.splitlines()
        assert leader.startswith("leader: epoch 3, took over 30 min ago, last heartbeat 30 min ago")
        assert title.split()[:6] == ["name", "pending", "executing", "success", "failure", "canceled"]
        by_name = {row.split()[0]: row for row in rows}
        assert by_name[INVOICE].split()[1:6] == ["2", "1", "0", "0", "0"]
        assert f"{runs['_id']} on here:1, lease " in by_name[INVOICE]
        assert by_name[INVOICE].rstrip().endswith("in 8 min")
        assert f"{REPORT} (paused)" in by_name[REPORT]
        assert IMPORT in by_name  # it is registered, and has no job

    def test_json_is_that_of_the_api(self, clean: Servers) -> None:
        job = made(delay=seconds(500))
        status = printed("status", "--json")
        (queue,) = [queue for queue in status["queues"] if queue["name"] == INVOICE]
        assert (queue["oldest_due"], queue["next_due"], queue["running"]) == (None, to_iso(job["due"]), None)
        assert (status["leader"], set(status)) == (None, {"queues", "leader", "server_time", "other_documents"})

    @pytest.mark.parametrize(("columns", "hidden"), [(200, ""), (80, "canceled, running, next due")])
    def test_names_are_whole_and_columns_that_do_not_fit_are_named(
        self, clean: Servers, columns: int, hidden: str
    ) -> None:
        runs = made(INVOICE, 1)
        begin(runs)
        made(REPORT, delay=seconds(500))
        jobs.pause([PARCEL, REPORT])
        _, title, *lines = run("status", columns=columns).stdout.splitlines()
        names = [line.split("  ")[0] for line in lines if line.startswith("test.")]
        assert sorted(names) == [IMPORT, f"{REPORT} (paused)", f"{PARCEL} (paused)", INVOICE]
        assert (str(runs["_id"]) in "\n".join(lines)) is (not hidden)
        assert ("next due" in title) is (not hidden)
        assert (f"not shown, because the terminal is too narrow: {hidden}" in lines) is bool(hidden)

    def test_the_latency_names_its_unit(self, clean: Servers) -> None:
        made(INVOICE, 1)
        counts = Counter[str](done=1)
        latency.count_all(counts, [(0, 0)], began_ms=2_000, ended_ms=3_000)
        counters.items_by_hour(f"{JOBS_INITIATOR}/{INVOICE}", counts)
        title, row = run("latency").stdout.splitlines()
        assert re.split(" {2,}", title.rstrip()) == ["name", "done", "wait p95 ms", "run p95 ms"]
        assert row.split()[:2] == [INVOICE, "1"]

    @pytest.mark.processes
    def test_status_without_a_leader(self, clean: Servers) -> None:
        said = queue_manager("jobs", "status", JOBS_IMPORTS="[]").stdout
        assert said.startswith("no leader has dispatched jobs yet")
        assert said.endswith("no queue\n")


class TestTerminal:
    @pytest.mark.processes
    @pytest.mark.parametrize("command", ["list", "show", "status", "list --json"])
    def test_text_of_an_application_cannot_send_escape_sequences(self, command: str, clean: Servers) -> None:
        job = made(INVOICE, NASTY)
        model.jobs().update_one({"_id": job["_id"]}, {"$set": {"state": "failure", "last_error": NASTY, "x": NASTY}})
        model.jobs().insert_one({**job, "_id": ObjectId(), "name": NASTY})
        arguments = [*command.split(), *([str(job["_id"])] if command == "show" else [])]
        for said in (said_on_a_terminal([*COMMAND, "jobs", *arguments]), run(*arguments).stdout):
            assert "[red]" in said
            if "--json" not in arguments:
                assert not {"\x9b", "\x7f", "\u202e"} & set(said)
            assert "\x1b[31m" not in said

    def test_list_shows_the_exception_of_a_traceback(self, clean: Servers) -> None:
        job, error = made(INVOICE), "Traceback (most recent call last):\n  File 'mail.py', line 1\nKeyError: 'to'\n"
        model.jobs().update_one({"_id": job["_id"]}, {"$set": {"state": "failure", "last_error": error}})
        listed = run("list").stdout
        assert "KeyError: 'to'" in listed
        assert "Traceback" not in listed
        assert "Traceback" in run("show", str(job["_id"])).stdout

    def test_escape_sequences_of_a_wrong_id_are_escaped(self, clean: Servers) -> None:
        assert "\x1b" not in run("cancel", "\x1b[31m").stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["run", INVOICE, "--every", "0"], "--every: must be 1 to 315360000 seconds"),
        (["run", INVOICE, "--cron", "soon"], "--cron: must be a cron expression"),
        (["run", INVOICE, "--priority", "101"], "--priority: must be a whole number"),
        (["run", INVOICE, "--at", "1969-01-01T00:00Z"], "--at: must be a time within"),
        (["list", "--state", "gone"], "--state: 'gone' is not a state"),
        (["list", "--sort", "size"], "--sort: must be one of"),
        (["list", "--cursor", "x"], "--cursor: must be the cursor"),
    ],
)
def test_an_error_names_the_option(arguments: list[str], error: str, clean: Servers) -> None:
    result = invoke("jobs", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"queue-manager: {error}")


@pytest.mark.parametrize("command", ["cancel", "retry", "remove"])
def test_an_invalid_id_among_others_changes_nothing(command: str, clean: Servers) -> None:
    ids = [str(made(INVOICE, number, delay=seconds(500))["_id"]) for number in range(2)]
    before = [jobs.get(id) for id in ids]
    result = invoke("jobs", command, ids[0], "not-an-id", ids[1])
    assert (result.returncode, result.stdout) == (2, "")
    assert "'not-an-id' is not a job id" in result.stderr
    assert [jobs.get(id) for id in ids] == before


@pytest.mark.processes
@pytest.mark.parametrize(
    "arguments", [["list"], ["show", GONE], ["run", INVOICE], ["cancel", GONE], ["pause", INVOICE], ["status"]]
)
def test_an_unavailable_server_is_reported_in_one_clear_line(arguments: list[str]) -> None:
    gone = f"mongodb://app:s3cret@127.0.0.1:{free_port()}/product?serverSelectionTimeoutMS=300"
    result = queue_manager("jobs", *arguments, MONGO_DB_URL=gone)
    assert result.returncode == 1
    assert result.stderr.startswith("queue-manager: MongoDB at mongodb://***@127.0.0.1")
    assert result.stderr.count("\n") == 1
    assert "s3cret" not in result.stderr


@pytest.mark.processes
def test_a_module_that_cannot_be_imported_is_reported_in_one_clear_line(clean: Servers) -> None:
    result = queue_manager("jobs", "status", JOBS_IMPORTS='["no_such_module"]')
    assert result.returncode == 2
    assert result.stderr.startswith("queue-manager: JOBS_IMPORTS: 'no_such_module' cannot be imported")
    assert result.stderr.count("\n") == 1


@pytest.mark.processes
def test_modules_are_imported_from_the_working_directory(clean: Servers, tmp_path: Path) -> None:
    (tmp_path / "billing.py").write_text(
        'from services.job_queues import job, jobs\n\n@job("bill")\ndef bill(n): ...\n\n'
        'if __name__ == "__main__":\n    print(jobs.run("bill", 1)["_id"])\n'
    )
    env = environment(JOBS_IMPORTS='["billing"]')
    started = subprocess.run([sys.executable, "billing.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert started.stderr == ""
    assert jobs.get(started.stdout.strip())["name"] == "bill"
    assert queue_manager("jobs", "run", "bill", "2", cwd=tmp_path, JOBS_IMPORTS='["billing"]').returncode == 0


def test_documents_of_another_program_are_left_out_and_can_be_shown(clean: Servers) -> None:
    others = add_foreign_jobs(INVOICE, server_now())
    ids = [str(made(INVOICE, str(number))["_id"]) for number in range(3)]

    first = printed("list", "--json", "--limit", "2")
    rest = printed("list", "--json", "--limit", "2", "--cursor", first["cursor"])

    assert [job["_id"] for page in (first, rest) for job in page["jobs"]] == ids[::-1]
    assert run("list").returncode == 0
    assert f"ignored: {len(others)} documents that another program stored" in run("status").stdout
    assert others[0]["serverId"] in run("show", TEXT_ID).stdout
    refused = run("cancel", TEXT_ID)
    assert (refused.returncode, "was stored by another program" in refused.stdout) == (1, True)


def adopt(*options: str) -> subprocess.CompletedProcess[str]:
    return invoke("adopt", "jobs", *options)


def test_jobs_of_another_program_are_shown_first_and_adopted_with_yes(clean: Servers) -> None:
    assert adopt().stdout == "no document to adopt\n"
    others = add_foreign_jobs(INVOICE, server_now())
    model.jobs().update_one({"_id": TEXT_ID}, {"$set": {"name": "unknown"}})

    dry = adopt()
    assert (dry.returncode, dry.stderr) == (1, "")
    assert "no function is registered for unknown: its jobs would fail" in dry.stdout
    assert "4 cannot be adopted" in dry.stdout
    assert "7 can be adopted; nothing was changed" in dry.stdout
    assert not model.jobs().count_documents({"attempts": {"$exists": True}})

    assert adopt("--yes").stdout.endswith("7 adopted\n")
    assert {one["_id"] for one in printed("list", "--json")["jobs"]} < {str(one["_id"]) for one in others}
    assert run("cancel", TEXT_ID).stdout == f"{TEXT_ID}  canceled\n"


def test_an_interrupted_adoption_tells_how_many_were_adopted(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    model.jobs().insert_many([foreign_job(INVOICE, "pending", server_now(), id=id) for id in "abc"])
    monkeypatch.setattr(adoption, "ADOPTION_BATCH_SIZE", 2)
    interrupt_second_call(monkeypatch, foreign_job_model, "adopt")
    adopted = adopt("--yes")
    assert (adopted.returncode, adopted.stderr) == (
        130,
        "queue-manager: interrupted; 2 changed before; the outcome is unknown\n",
    )
    monkeypatch.undo()
    assert adopt("--yes").stdout.endswith("1 adopted\n")


def test_pages_of_jobs_with_text_ids_continue_at_the_printed_cursor(clean: Servers) -> None:
    model.jobs().insert_many([foreign_job(INVOICE, "pending", server_now(), id=id) for id in ("a" * 24, "b c", "d")])
    adopt("--yes")
    first = printed("list", "--json", "--limit", "2")
    rest = printed("list", "--json", "--limit", "2", "--cursor", first["cursor"])
    assert [job["_id"] for page in (first, rest) for job in page["jobs"]] == ["d", "b c", "a" * 24]


def test_job_that_another_program_stored_without_fields_is_rescheduled(clean: Servers) -> None:
    model.jobs().insert_one({"_id": "odd", "attempts": 0, "state": "pending"})
    result = run("reschedule", "odd", "--priority", "5")
    assert (result.returncode, result.stdout, result.stderr) == (0, "odd  due unknown, priority 5\n", "")
    at = to_iso(server_now() + seconds(90))
    assert run("reschedule", "odd", "--at", at).stdout == f"odd  due {at}, priority 5\n"
    model.jobs().update_one({"_id": "odd"}, {"$unset": {"priority": "", "state": ""}})
    result = run("remove", "odd")
    assert (result.returncode, result.stdout) == (1, "odd  The job odd is in no state and cannot be removed\n")
