"""A user's own `DueDocuments` in a package outside the repository, with real processes: the file, nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId

from models.database import collection, server_now
from models.document_id import id_text
from queue_manager.core.clock import hours, seconds
from tests.documented import DOCS, block
from tests.e2e.celery_processes import QUICK_START, ROOT, CeleryProcess
from tests.e2e.commands import environment, queue_manager
from tests.eventually import eventually
from tests.pace import paced
from tests.real_servers import Servers
from tests.web.web_process import web

pytestmark = pytest.mark.crash

TUTORIAL = DOCS / "tutorial.md"
ITEMS = "/api/systems/trial-end/items"
INDEX = "qm_due_trial_ends_at_"
SYSTEM = """
from datetime import timedelta

from models.database import collection
from queue_manager import DueDocuments, RetryPolicy

trials = DueDocuments(
    name="trial-end",
    title="Trials",
    description="Trial accounts, expired when their trial is over.",
    collection="accounts",
    due="trial_ends_at",
    where={"status": "trial"},
    every=timedelta(seconds=5),
)


@trials.item(retry=RetryPolicy(max_attempts=2, base=timedelta(seconds=0.1)))
def end_trial(account: dict) -> dict:
    if account.get("broken"):
        raise ValueError("no such tariff")
    return {"$set": {"status": "expired"}, "$inc": {"times": 1}}


@trials.after
def tell(written: list) -> None:
    for one in written:
        about = {"account": one.id, "written_at": one.written_at, "due_at": one.due_at}
        collection("mails").insert_one(about)
"""


@dataclass(frozen=True)
class User:
    """Somebody with one file and the environment of every process."""

    directory: Path
    env: dict[str, str]

    def queue_manager(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return queue_manager(*arguments, cwd=self.directory, **{**self.env, **env})

    def worker(self, name: str) -> CeleryProcess:
        log = self.directory / f"{name}.log"
        return CeleryProcess(log, "worker", "-n", f"{name}@%h", "-c", "2", *QUICK_START, env=self.env)

    def beat(self) -> CeleryProcess:
        return CeleryProcess(self.directory / "beat.log", "beat", env=self.env)


def write(directory: Path, source: str) -> None:
    (directory / "billing" / "trial_end.py").write_text(source)


@pytest.fixture
def user(clean: Servers, tmp_path: Path) -> Iterator[User]:
    (tmp_path / "billing").mkdir()
    write(tmp_path, SYSTEM)
    path = f"{ROOT}:{tmp_path}"
    user = User(tmp_path, {"PYTHONPATH": path, "QM_SYSTEMS": "billing.trial_end", "QM_LEASE_SECONDS": "4"})
    collection("accounts").drop_indexes()
    migrated = user.queue_manager("migrate")
    assert migrated.returncode == 0, migrated.stderr
    yield user
    collection("accounts").drop_indexes()


def add(count: int = 1, **fields: Any) -> list[Any]:
    """Insert accounts whose trial ends from 5 s ago to 5 s from now, with ids of several types."""
    kinds: list[Any] = [int, str, Int64, float, lambda _: ObjectId(), lambda i: {"tenant": i, "kind": "a"}]
    kinds += [lambda i: Decimal128(f"{i}.5"), lambda i: Binary(str(i).encode(), 5)]
    now = server_now()
    accounts = [
        {
            "_id": kinds[i % len(kinds)](i),
            "status": "trial",
            "trial_ends_at": now + seconds(i % 11 - 5),
            **fields,
        }
        for i in range(count)
    ]
    collection("accounts").insert_many(accounts)
    return [account["_id"] for account in accounts]


def expired() -> int:
    return collection("accounts").count_documents({"status": "expired"})


def failed_items() -> int:
    """Return how many items are recorded as failed. A record is deleted after its document was written."""
    return collection("qm_failed_items").count_documents({})


@pytest.mark.smoke
def test_a_thousand_accounts_expire_once_each_through_a_kill(user: User) -> None:
    ids = add(1_000)
    with user.worker("first") as first, user.worker("second"), user.beat():
        eventually(lambda: expired() >= 100)
        first.kill()
        eventually(lambda: expired() == 1_000, within=200)  # MongoDB keeps the locks of what was killed for 60 s
        eventually(lambda: len(collection("mails").distinct("account")) == 1_000)
        eventually(lambda: collection("qm_owed").count_documents({}) == 0)
    assert collection("accounts").count_documents({"times": 1}) == 1_000
    assert {id_text(id) for id in collection("mails").distinct("account")} == {id_text(id) for id in ids}
    fields = {name for account in collection("accounts").find() for name in account}
    assert fields == {"_id", "status", "trial_ends_at", "times"}  # none of ours


def test_account_due_between_two_scans_expires_on_time(user: User) -> None:
    with user.worker("worker"), user.beat():
        add()  # the first shows that scans run
        eventually(lambda: expired() == 1)
        now = server_now()
        accounts = [
            {"_id": f"soon-{i}", "status": "trial", "trial_ends_at": now + seconds(7 + i / 2)} for i in range(9)
        ]
        with paced() as pace:
            collection("accounts").insert_many(accounts)
            eventually(lambda: collection("mails").count_documents({}) == 10)
    late = [mail["written_at"] - mail["due_at"] for mail in collection("mails").find({"account": {"$ne": 0}})]
    assert len(late) == 9
    assert min(late) >= seconds(0)
    assert max(late) < seconds(pace.allowed(2))


def test_fifty_items_at_ten_a_second_take_about_five_seconds(user: User) -> None:
    write(user.directory, SYSTEM.replace("every=timedelta(seconds=5)", "every=timedelta(seconds=2), max_rate=10"))
    add(50)
    collection("accounts").update_many({}, {"$set": {"trial_ends_at": server_now() - seconds(1)}})
    with user.worker("worker"), user.beat():
        eventually(lambda: collection("mails").count_documents({}) == 50, within=90)
    written = sorted(mail["written_at"] for mail in collection("mails").find())
    assert written[-1] - written[0] > seconds(4)
    assert all(later - earlier > seconds(0.5) for earlier, later in zip(written, written[10:], strict=False))
    assert expired() == 50


def test_everything_about_a_system_is_derived_from_its_declaration(user: User) -> None:
    assert any(name.startswith(INDEX) for name in collection("accounts").index_information())
    good, bad = add(2)
    collection("accounts").update_many({}, {"$set": {"trial_ends_at": server_now() - seconds(1)}})
    collection("accounts").update_one({"_id": bad}, {"$set": {"broken": True}})
    collection("accounts").insert_one({"status": "trial", "trial_ends_at": server_now() + hours(1)})
    with web(user.directory, **user.env) as process:

        def ids(state: str) -> list[str]:
            return [item["id"] for item in process.get(f"{ITEMS}?state={state}").body["items"]]

        page = process.get("/systems/trial-end").text
        assert "<h1>Trials</h1>" in page
        assert '<a href="/systems/trial-end" aria-current="page">Trials</a>' in page
        assert '<a href="/systems/trial-end">Trials</a>' in process.get("/").text
        assert sorted(ids("due")) == sorted(map(id_text, (good, bad)))
        assert user.queue_manager("scan", "trial-end").returncode == 0
        assert sorted(ids("in-progress")) == sorted(map(id_text, (good, bad)))
        assert 'queue_manager_queue_messages{queue="trial-end"} 2.0' in process.get("/metrics").text
        with user.worker("worker"):
            eventually(lambda: (expired(), ids("failed")) == (1, [id_text(bad)]))
            (failed,) = process.get(f"{ITEMS}?state=failed").body["items"]
            assert "no such tariff" in failed["reason"]
            health = json.loads(user.queue_manager("health", "--json").stdout)
            assert any(
                "1 failed item" in problem["text"] and str(bad) in problem["text"] for problem in health["problems"]
            )
            assert 'queue_manager_cooling_off{system="trial-end"} 1.0' in process.get("/metrics").text
            collection("accounts").update_one({"_id": bad}, {"$unset": {"broken": ""}})
            assert process.post(f"{ITEMS}/{id_text(bad)}/retry").status == 202
            eventually(lambda: (expired(), failed_items()) == (2, 0))
        assert [ids(state) for state in ("due", "in-progress", "stuck", "failed")] == [[], [], [], []]


def test_the_failing_function_of_the_tutorial_is_corrected_and_retried(user: User) -> None:
    declaration = block(1, heading="2. Declare a system", page=TUTORIAL)
    failing, insert = (block(number, heading="4. Make it fail", page=TUTORIAL) for number in (0, 1))
    write(user.directory, declaration.partition("\n@trials.item")[0] + "\n" + failing)
    with web(user.directory, **user.env) as process, user.beat():
        with user.worker("failing"):
            began = server_now()
            exec(insert, {"accounts": collection("accounts"), "datetime": datetime, "UTC": UTC})
            (failed,) = eventually(lambda: process.get(f"{ITEMS}?state=failed").body["items"], within=90)
        assert server_now() - began > seconds(1 + 2 + 4 + 8)
        assert "the billing service is down" in failed["reason"]
        assert failed["next_at"]
        assert "1 failed item" in user.queue_manager("health").stdout
        write(user.directory, declaration)
        with user.worker("corrected"):
            assert process.post(f"{ITEMS}/{failed['id']}/retry").status == 202
            eventually(lambda: (expired(), failed_items()) == (1, 0))
    (account,) = collection("accounts").find()
    assert account.keys() == {"_id", "status", "trial_ends_at"}


def test_an_ordinary_task_of_another_program_expires_an_account(user: User) -> None:
    (account,) = add()
    send = f"from billing.trial_end import end_trial; print(end_trial.delay({id_text(account)!r}).id)"
    sent = subprocess.run(
        [sys.executable, "-c", send],
        env=environment(**user.env),
        cwd=user.directory,
        capture_output=True,
        text=True,
    )
    assert sent.returncode == 0, sent.stderr
    with user.worker("worker"):
        eventually(lambda: expired() == 1)


def test_a_paused_system_waits_and_is_not_a_problem(user: User) -> None:
    add()
    assert user.queue_manager("systems", "pause", "trial-end").stdout == "trial-end  paused\n"
    scan = json.loads(user.queue_manager("scan", "trial-end").stdout)
    assert (scan["paused"], scan["found"], scan["enqueued"]) == (1, 0, 0)
    long_ago = server_now() - hours(1)
    collection("accounts").update_many({}, {"$set": {"trial_ends_at": long_ago}})
    collection("qm_owed").insert_one({"_id": "a batch", "system": "trial-end", "at": long_ago, "items": []})
    health = json.loads(user.queue_manager("health", "--json").stdout)
    assert any(detail.startswith("trial-end: paused") for detail in health["details"])
    assert not {"lag", "failing-calls"} & {problem["rule"] for problem in health["problems"]}
    with web(user.directory, **user.env) as process:
        (shown,) = [one for one in process.get("/api/overview").body["systems"] if one["name"] == "trial-end"]
        assert shown["idle"] == "paused"
    assert user.queue_manager("systems", "resume", "trial-end").returncode == 0
    resumed = json.loads(user.queue_manager("health", "--json").stdout)
    assert {"lag", "failing-calls"} <= {problem["rule"] for problem in resumed["problems"]}
    scan = json.loads(user.queue_manager("scan", "trial-end").stdout)
    assert (scan["enqueued"], scan["after"]) == (1, 1)


def test_a_dry_run_counts_and_dispatches_nothing(user: User) -> None:
    add()
    scan = json.loads(user.queue_manager("scan", "trial-end", QM_DRY_RUN="trial-end").stdout)
    assert (scan["dry_run"], scan["found"], scan["enqueued"]) == (1, 1, 0)
    refused = user.queue_manager("health", QM_DRY_RUN="trial-ends")
    assert refused.returncode == 2
    error = "QM_DRY_RUN: there is no system 'trial-ends' (did you mean trial-end?); the systems are: support-snooze, "
    assert error in refused.stderr
