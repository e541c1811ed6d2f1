"""`queue-manager doctor` against real servers, each with one wrong state: what it finds, and what it cannot check."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from bson import ObjectId
from pymongo import MongoClient

from dev.ports import LOOPBACK, free_port
from dev.servers import DATABASE, Valkey
from models import job, schema
from models.database import collection, server_now
from queue_manager.core.clock import minutes
from queue_manager.core.redis_client import connect
from queue_manager.telemetry import worker_heartbeats
from services.message_queue import message_queue
from services.support_snooze import system as support_snooze
from tests.docs.transcript import Transcript
from tests.documented import DOCS, block, output
from tests.e2e.commands import COMMAND, queue_manager, said_on_a_terminal
from tests.e2e.health_command import QUEUES, SLOW, locked_mongodb, repeated
from tests.e2e.test_start_checks import MongoWithUsers, refused_user
from tests.eventually import eventually
from tests.pace import promptly
from tests.real_servers import Servers
from tests.rooms import T0

NOWHERE = f"{LOOPBACK}:1"


@dataclass(frozen=True)
class Answer:
    exit_code: int
    checks: dict[str, dict[str, Any]]

    def problems(self, check: str) -> list[str]:
        return [problem["text"] for problem in self.checks[check]["problems"]]

    def only_problem(self, check: str) -> str:
        """Return the text of the problem of a check, in whose way no other check was."""
        others = {name: one["problems"] for name, one in self.checks.items() if name != check and one["problems"]}
        assert (self.exit_code, others) == (1, {})
        (problem,) = self.checks[check]["problems"]
        assert problem["action"].endswith(".")
        return str(problem["text"])

    def with_status(self, status: str) -> list[str]:
        return [name for name, one in self.checks.items() if one["status"] == status]


def doctor(directory: Path, **env: str) -> Answer:
    result = queue_manager("doctor", "--json", cwd=directory, **SLOW, **env)
    assert result.stderr == ""
    checks = json.loads(result.stdout)["checks"]
    return Answer(result.returncode, {one["check"]: one for one in checks})


def said(directory: Path, **env: str) -> str:
    return queue_manager("doctor", cwd=directory, **SLOW, **env).stdout


def test_doctor_exits_with_0_if_nothing_is_wrong(well: Servers, tmp_path: Path) -> None:
    rebuild_indexes_of_jobs()  # other tests have stored lists
    answer = doctor(tmp_path, QM_JOBS="true", QM_MESSAGE_QUEUE="true")
    assert (answer.exit_code, answer.with_status("ok")) == (0, [*answer.checks])


# The form of the output


def test_without_a_terminal_there_are_no_colours_and_a_line_for_each_check(well: Servers, tmp_path: Path) -> None:
    lines = said(tmp_path).splitlines()
    assert "\x1b" not in "".join(lines)
    assert "ok           leader               A beat of this release leads." in lines
    assert lines[-1] == "No problem in 19 checks"


@pytest.mark.processes
def test_on_a_terminal_there_are_colours(well: Servers) -> None:
    assert "\x1b[32mok " in said_on_a_terminal([*COMMAND, "doctor"])


def test_a_problem_is_shown_with_what_to_do(clean: Servers, tmp_path: Path) -> None:
    lines = said(tmp_path).splitlines()
    first = lines.index("problem      leader")
    assert lines[first + 1 : first + 3] == [
        "             beat: No beat is the leader, so no scans run",
        "               Start `celery -A tasks beat`.",
    ]


# Installation and settings


def test_a_package_in_the_working_directory_that_hides_ours_is_named(well: Servers, tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").touch()
    problem = doctor(tmp_path).only_problem("packages")
    assert f"imports {tmp_path}/tasks/__init__.py instead" in problem


def test_each_wrong_setting_is_one_line_and_the_other_checks_still_run(tmp_path: Path) -> None:
    with promptly(10):
        answer = doctor(tmp_path, QM_LEASE_SECONDS="soon", QM_BROKER="fast")
    assert answer.problems("settings") == [
        "QM_BROKER='fast': must be batched or stock",
        "QM_LEASE_SECONDS='soon': must be a number from 2 to 3600",
    ]
    assert (answer.exit_code, answer.with_status("ok")) == (1, ["packages", "versions"])
    assert {tuple(one["not_checked"]) for one in answer.checks.values() if one["status"] == "not checked"} == {
        ("depends on settings",)
    }


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("JOBS_IMPORTS", "no_such_jobs", "JOBS_IMPORTS: 'no_such_jobs' cannot be imported"),
        ("QM_API_KEYS_FILE", "no-such-file", "QM_API_KEYS_FILE='no-such-file': must be a readable file"),
        ("QM_LEASE_SECOND", "5", "QM_LEASE_SECOND is not a setting (did you mean QM_LEASE_SECONDS?)"),
    ],
)
def test_doctor_finds_what_a_process_would_refuse_at_start(
    name: str, value: str, problem: str, well: Servers, tmp_path: Path
) -> None:
    (found,) = doctor(tmp_path, QM_JOBS="true", **{name: value}).problems("settings")
    assert found.startswith(problem)


# Servers that are unavailable or hang


@pytest.mark.processes
def test_unavailable_servers_are_named_and_the_other_checks_still_run(tmp_path: Path) -> None:
    away = {"MONGO_DB_URL": f"mongodb://app:s3cret@{NOWHERE}/{DATABASE}", "REDIS_URL": f"redis://:s3cret@{NOWHERE}/0"}
    with promptly(25):
        answer = doctor(tmp_path, **away)
    assert (answer.exit_code, answer.with_status("problem")) == (1, ["mongodb", "redis"])
    assert answer.with_status("ok") == ["packages", "versions", "settings"]
    assert answer.checks["clocks"]["not_checked"] == ["depends on mongodb, redis"]
    assert "s3cret" not in json.dumps(answer.checks)


@pytest.mark.processes
def test_an_unavailable_server_is_shown_as_in_the_documentation(
    well: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = output(block(0, heading="The installation", page=DOCS / "how-to" / "diagnose.md"))
    expected, url = shown.replace("db:27017", NOWHERE), f"mongodb://{NOWHERE}/product"
    monkeypatch.setattr(worker_heartbeats, "own_database", lambda: f"{NOWHERE}/product")  # of the worker, too
    # On a busy machine the time of the check may be over before that of the driver, which gives the reason.
    eventually(lambda: Transcript().matches(expected, said(tmp_path, MONGO_DB_URL=url)))


@pytest.mark.processes
def test_a_hanging_redis_does_not_prevent_the_checks_of_mongodb(clean: Servers, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey:
        os.kill(valkey.pid, signal.SIGSTOP)
        try:
            with promptly(25):
                answer = doctor(tmp_path, REDIS_URL=valkey.url)
        finally:
            os.kill(valkey.pid, signal.SIGCONT)
    assert answer.with_status("problem")[0] == "redis"
    assert {"mongodb", "write-concern", "indexes", "mongodb-permissions"} <= {*answer.with_status("ok")}
    assert answer.checks["persistence"]["not_checked"]


def test_the_server_of_the_message_queue_is_checked_too(well: Servers, tmp_path: Path) -> None:
    url = f"redis://{LOOPBACK}:{free_port()}/0"
    problem, *_ = doctor(tmp_path, QM_MESSAGE_QUEUE="true", QM_QUEUE_REDIS_URL=url).problems("redis")
    assert problem.startswith(f"Redis at {url}, which QM_QUEUE_REDIS_URL names, does not answer")
    with Valkey(tmp_path / "queue", config={"maxmemory-policy": "allkeys-lru"}) as valkey:
        (problem,) = doctor(tmp_path, QM_MESSAGE_QUEUE="true", QM_QUEUE_REDIS_URL=valkey.url).problems("redis")
    assert "maxmemory-policy 'allkeys-lru'" in problem


# MongoDB


@pytest.mark.processes
def test_missing_rights_of_the_mongodb_user_are_named(clean: Servers, tmp_path: Path) -> None:
    with MongoWithUsers(tmp_path / "mongo") as mongo:
        admin = doctor(tmp_path, MONGO_DB_URL=mongo.url_of("admin"))
        reader = doctor(tmp_path, MONGO_DB_URL=mongo.url_of("reader"))
        nobody = doctor(tmp_path, MONGO_DB_URL=mongo.url)
    assert admin.checks["mongodb-permissions"]["status"] == "ok"
    assert reader.problems("mongodb-permissions") == [
        *(
            f"The user of MONGO_DB_URL may not insert, update, remove in the collection {name}"
            for name in sorted(
                {"qm_alerts", "qm_failed_items", "qm_owed", "qm_readiness", "scan_marks", *schema.SHARED_INDEXES}
            )
        ),
        "The user of MONGO_DB_URL may not update in the collection support_rooms",
    ]
    assert "requires authentication" in nobody.checks["mongodb-permissions"]["not_checked"][0]


@pytest.mark.processes
def test_a_write_that_is_not_confirmed_in_time_is_found(well: Servers, tmp_path: Path) -> None:
    with locked_mongodb(well.mongo.url):
        answer = doctor(tmp_path)
    assert "did not confirm" in answer.only_problem("write-concern")


def test_confirmed_writes_that_are_not_in_the_journal_are_found(well: Servers, tmp_path: Path) -> None:
    with MongoClient[dict[str, Any]](well.mongo.url) as client:

        def wait_for_the_journal(is_default: bool) -> None:
            config = client.admin.command("replSetGetConfig")["config"]
            config["version"] += 1
            config["writeConcernMajorityJournalDefault"] = is_default
            client.admin.command("replSetReconfig", config)

        wait_for_the_journal(False)
        try:
            answer = doctor(tmp_path)
        finally:
            wait_for_the_journal(True)
        assert answer.only_problem("write-concern").startswith("writeConcernMajorityJournalDefault is false")
    assert doctor(tmp_path).checks["write-concern"]["status"] == "ok"


def test_documents_that_prevent_an_index_are_named_with_it(well: Servers, tmp_path: Path) -> None:
    pulses, account = collection("projects.pulse"), ObjectId()
    pulses.drop_indexes()
    pulses.insert_many({"type": "review_request", "status": "pending", "account_id": account} for _ in range(2))
    answer = doctor(tmp_path, QM_PROJECTS="true")
    missing, obstacle = answer.problems("indexes")
    assert missing.startswith("Missing in MongoDB: projects.pulse.")
    assert obstacle.startswith("review-requests: ")
    assert str(account) in obstacle


def test_indexes_of_jobs_that_lists_made_slow_are_named(well: Servers, tmp_path: Path) -> None:
    rebuild_indexes_of_jobs()
    any_job = {"name": "mail", "state": "pending", "attempts": 0}
    id = job.jobs().insert_one({**any_job, "_id": ObjectId(), "waiting": [T0, T0]}).inserted_id
    job.jobs().delete_one({"_id": id})
    problem = doctor(tmp_path, QM_JOBS="true").only_problem("indexes")
    assert "so reading jobs_data.due_names, jobs_data.next_of_a_name is slow" in problem
    rebuild_indexes_of_jobs()
    assert doctor(tmp_path, QM_JOBS="true").checks["indexes"]["status"] == "ok"


def rebuild_indexes_of_jobs() -> None:
    job.jobs().drop_indexes()
    schema.create_indexes(job.JOB_INDEXES)


def test_calls_of_after_of_a_system_that_is_not_declared_are_named(well: Servers, tmp_path: Path) -> None:
    names = [support_snooze.name, "review-requests", *["trial-end"] * 2]
    calls = [{"_id": str(number), "system": name, "at": T0, "items": []} for number, name in enumerate(names)]
    later = server_now() + minutes(10)  # not a matter of the health rules
    collection("qm_owed").insert_many([{**call, "postponed_until": later} for call in calls])
    problem = doctor(tmp_path).only_problem("systems")
    assert problem == (
        "Pending calls of `after` for systems that are not declared here, or have no `after`: trial-end (2 batches), "
        "review-requests (1 batch)"
    )


# Redis


def test_a_redis_with_eviction_and_without_persistence_is_found(clean: Servers, tmp_path: Path) -> None:
    config = {"maxmemory-policy": "allkeys-lru"}
    with Valkey(tmp_path / "valkey", appendonly=False, config=config) as valkey:
        answer = doctor(tmp_path, REDIS_URL=valkey.url)
    (eviction,) = answer.problems("redis")
    assert "maxmemory-policy 'allkeys-lru'" in eviction
    (persistence,) = answer.problems("persistence")
    assert persistence.startswith(f"Redis at {valkey.url} writes no append-only file and has no replica")


def test_a_redis_without_persistence_whose_replica_has_its_data_is_not_named(clean: Servers, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey", appendonly=False) as valkey, connect(valkey.url) as client:
        with Valkey(tmp_path / "replica", config={"replicaof": f"{LOOPBACK} {valkey.port}"}):
            eventually(lambda: client.info("replication")["connected_slaves"] == 1)
            assert doctor(tmp_path, REDIS_URL=valkey.url).checks["persistence"]["status"] == "ok"


def test_keys_written_by_another_program_are_named(clean: Servers, client: redis.Redis, tmp_path: Path) -> None:
    client.set("qm:lease:support-snooze:cooling", "a text")
    client.hset("support-snooze", "a", "hash")
    client.set("queue_metadata", "a text")
    found = doctor(tmp_path, QM_MESSAGE_QUEUE="true").problems("redis-keys")
    where = f"In Redis at {clean.valkey.url}, the key"
    assert found == [
        f"{where} qm:lease:support-snooze:cooling is a string, and must be a sorted set",
        f"{where} support-snooze is a hash, and must be a list",
        f"{where} queue_metadata is a string, and must be a hash",
    ]


def test_nearly_full_memory_is_found(clean: Servers, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey:
        with redis.Redis.from_url(valkey.url) as client:
            for number in range(500):
                client.set(f"of another program {number}", b"x" * 20_000)
            client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.05))
        (problem,) = doctor(tmp_path, REDIS_URL=valkey.url).problems("persistence")
    assert problem.startswith(f"Redis at {valkey.url} uses 9"), problem


def test_missing_rights_of_the_redis_user_are_named_and_nothing_is_written(clean: Servers, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey:
        with refused_user(valkey, "+@all", "-xadd", "-@scripting", "resetkeys", "~qm:*", "~scans*") as url:
            (problem,) = doctor(tmp_path, REDIS_URL=url).problems("redis-permissions")
        with refused_user(
            valkey, "+@all", "resetkeys", "~queue_*", "~[^q]*", "~qm:*", "resetchannels", "&socketio"
        ) as url:
            (of_queue,) = doctor(tmp_path, REDIS_URL=url, QM_MESSAGE_QUEUE="true").problems("redis-permissions")
        with refused_user(valkey, "+@all", "-brpop", "resetkeys", "~[^_]*") as url:
            (of_stock,) = doctor(tmp_path, REDIS_URL=url, QM_BROKER="stock").problems("redis-permissions")
            assert doctor(tmp_path, REDIS_URL=url).checks["redis-permissions"]["status"] == "ok"
        with refused_user(valkey, "+@all", "allkeys") as url:
            assert doctor(tmp_path, REDIS_URL=url).checks["redis-permissions"]["status"] == "ok"
        with connect(valkey.url) as client:
            assert client.keys("*doctor*") == []
    assert of_queue.endswith(
        "may not use the key queue-manager, the key queue, the key queue:deadlines, the channel queue_events"
    ), of_queue
    assert of_stock.endswith("may not use BRPOP, the key _kombu.binding.queue-manager"), of_stock
    assert problem.startswith("The user of Redis at redis://***@")
    assert problem.endswith(
        "may not use EVAL, EVALSHA, XADD, the key queue-manager, the key support-snooze, the key review-request-pulse, "
        "the key stale-thumbnails, the key jobs"
    ), problem


# Processes and queues


def test_a_missing_leader_and_missing_workers_are_named(clean: Servers, tmp_path: Path) -> None:
    answer = doctor(tmp_path)
    assert answer.with_status("problem") == ["leader", "workers"]


def test_a_worker_of_another_release_is_named(well: Servers, tmp_path: Path) -> None:
    older = json.dumps({"queues": QUEUES, "release": "0.0.9"})
    with connect(well.valkey.url) as client:

        def record() -> None:
            worker_heartbeats.record("older@there", QUEUES)
            client.hset(worker_heartbeats.DETAILS_KEY, f"older@there {os.getpid()}", older)

        with repeated(record):
            problem = doctor(tmp_path).only_problem("workers")
    worker_heartbeats.remove("older@there")
    assert problem.startswith("1 worker of another release than this, ")
    assert problem.endswith(": older@there (0.0.9)")


@pytest.mark.parametrize(
    ("member", "used", "problem"),
    [
        ("database", "mongo.test/staging", "another database than this, {database}, on the same Redis"),
        ("broker", "old.test:6379/0", "another broker than this, {broker}, which get none of its messages although"),
    ],
)
def test_a_worker_with_another_database_or_broker_is_named(
    member: str, used: str, problem: str, well: Servers, tmp_path: Path
) -> None:
    own = {"database": f"{LOOPBACK}:{well.mongo.port}/{DATABASE}", "broker": f"{LOOPBACK}:{well.valkey.port}/0"}
    place = f"staging@there {os.getpid()}"
    with connect(well.valkey.url) as client:
        worker_heartbeats.record("staging@there", QUEUES)
        recorded = json.loads(client.hget(worker_heartbeats.DETAILS_KEY, place) or "")
        assert recorded[member] == own[member]

        def record() -> None:
            worker_heartbeats.record("staging@there", QUEUES)
            client.hset(worker_heartbeats.DETAILS_KEY, place, json.dumps({**recorded, member: used}))

        with repeated(record):
            found = doctor(tmp_path).only_problem("workers")
    worker_heartbeats.remove("staging@there")
    assert found.startswith(f"1 worker with {problem.format(**own)}")
    assert found.endswith(f": staging@there ({used})")


def test_a_queue_that_is_too_long_or_has_no_worker_is_named(well: Servers, tmp_path: Path) -> None:
    with connect(well.valkey.url) as client:
        client.rpush(str(support_snooze.queue), "one", "two")
        client.rpush("queue-manager", "three")
        assert doctor(tmp_path, QM_MAX_QUEUE="1").problems("backlog") == [
            "The queue support-snooze has 2 messages, more than QM_MAX_QUEUE=1, so scans dispatch no more",
            "No worker consumes the queue queue-manager, which has 1 message",
        ]


def test_messages_that_were_left_on_another_redis_are_counted(well: Servers, tmp_path: Path) -> None:
    own = message_queue()
    own.enqueue_batch([{"id": f"m{number}", "type": "mail", "payload": number} for number in range(5)])
    own.receive_many(limit=1)
    url, same = f"redis://{LOOPBACK}:{well.valkey.port}", f"redis://localhost:{well.valkey.port}/0"

    def found(queue_url: str) -> list[str]:
        return doctor(tmp_path, QM_MESSAGE_QUEUE="true", QM_QUEUE_REDIS_URL=queue_url).problems("backlog")

    assert found(same) == []
    assert found(f"{url}/1") == [
        f"5 messages of the message queue stayed in Redis at {well.valkey.url}, where nothing receives them: "
        f"QM_QUEUE_REDIS_URL names {url}/1"
    ]


def test_messages_and_indexes_of_the_first_release_are_named(well: Servers, tmp_path: Path) -> None:
    ours = json.dumps({"headers": {"task": support_snooze.item_task}})
    with connect(well.valkey.url) as client:
        client.rpush("celery", ours, json.dumps({"headers": {"task": "shop.mail"}}), "nonsense")
        client.hset("unacked", "tag", f'[{ours}, "", "celery"]')
        rooms = collection("support_rooms")
        rooms.create_index("claim.claimed_until", name="claims_by_end")
        try:
            messages, indexes = doctor(tmp_path).problems("old-release")
        finally:
            rooms.drop_index("claims_by_end")
    assert messages == "2 messages for tasks of Queue Manager in the keys of release 0.1 (celery, unacked)"
    assert indexes == "Indexes that only earlier releases needed: support_rooms.claims_by_end"
