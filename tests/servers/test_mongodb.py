"""All processes work with the documented roles of MongoDB, with TLS and by `mongodb+srv`, and may do nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure

from beat_schedule import systems
from dev.servers import DATABASE, REPLICA_SET, Valkey
from models import database
from models.transaction import end_abandoned
from queue_manager.core.settings import settings
from queue_manager.doctor import mongodb as doctor
from queue_manager.operations.diagnosis import diagnose
from services.failures import read_failures
from tests.e2e.celery_processes import CeleryProcess, LoggedProcess, log_of_refused_start
from tests.e2e.commands import COMMAND
from tests.e2e.job_processes import job_lab
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.servers.certificates import Certificates
from tests.servers.dns_server import NAME, dns_server, env_with_dns
from tests.servers.everything import command, do_everything, processes, shown
from tests.servers.mongo_server import PASSWORDS, MongoWithRoles, documented
from tests.web.credentials import OPERATOR
from tests.web.queue_client import Stream

pytestmark = pytest.mark.processes

EVERY_SYSTEM = {"QM_PROJECTS": "true", "QM_SITES_FIX_STALE_THUMBNAILS": "true"}
SECRETS = [*PASSWORDS.values(), *(quote(password, safe="") for password in PASSWORDS.values())]
PAGES = [
    *("/api/jobs", "/api/jobs/status", "/api/overview/history", "/api/schedule", "/api/workers"),
    *(f"/api/systems/{name}/items" for name in ("support-snooze", "review-requests", "stale-thumbnails", "second-try")),
    *(f"/api/systems/{name}" for name in ("support-snooze", "review-requests", "stale-thumbnails", "second-try")),
]
COLLECTIONS = {
    "QM_CONVERSATIONS": ["support_rooms", "qm_failed_items", "qm_owed"],
    "QM_PROJECTS": ["projects.pulse", "store-subscription"],
    "QM_SITES_FIX_STALE_THUMBNAILS": ["agency_websites", "instasites", "thumbnail_resets"],
    "QM_JOBS": ["jobs_data", "job_queues", "job_leaders", "qm_job_counts"],
}
"""The collections of each built-in system, by its flag."""
REFUSED: list[Callable[[Database[dict[str, object]]], object]] = [
    lambda db: db.orders.find_one(),
    lambda db: db.orders.insert_one({}),
    lambda db: db.support_rooms.insert_one({}),
    lambda db: db.support_rooms.delete_one({}),
    lambda db: db.support_rooms.create_index("x"),
    lambda db: db.jobs_data.drop(),
    lambda db: db.create_collection("orders"),
    lambda db: db.client.other.orders.find_one(),
    lambda db: db.client.admin.command("serverStatus"),
]


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "valkey") as valkey:
        yield valkey


@pytest.fixture
def mongo(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MongoWithRoles]:
    """A MongoDB of the test's own, also for this process, which is its administrator."""
    certificates = Certificates.made_in(tmp_path / "certificates") if getattr(request, "param", False) else None
    database.close()
    with MongoWithRoles(tmp_path / "mongo", certificates) as mongo:
        monkeypatch.setenv("MONGO_DB_URL", mongo.url_of("admin"))
        settings.cache_clear()
        yield mongo
        database.close()
    settings.cache_clear()


def migrate(mongo_url: str, valkey: Valkey, *options: str) -> str:
    return command("migrate", *options, **EVERY_SYSTEM, MONGO_DB_URL=mongo_url, REDIS_URL=valkey.url)


def test_everything_works_with_the_documented_roles(mongo: MongoWithRoles, valkey: Valkey, tmp_path: Path) -> None:
    url = mongo.url_of("qm-migrate")
    text = migrate(url, valkey) + migrate(url, valkey, "--finish")
    env = {**EVERY_SYSTEM, "MONGO_DB_URL": mongo.url_of("qm"), "REDIS_URL": valkey.url}
    with processes(tmp_path, migrate_as=url, **env) as running:
        do_everything(running)
        with Stream(running.web, "/api/jobs/events", X_API_KEY=OPERATOR) as stream:  # a change stream of MongoDB
            next(stream.blocks())
            id = job_lab().run("soon")
            assert any(job["id"] == id for _, job in stream.events())
        answers = [running.ask("GET", path) for path in PAGES]
        assert [answer.status for answer in answers] == [200] * len(PAGES)
        text += shown(running)
        for arguments in ("scan review-requests", "scan stale-thumbnails", "jobs list", "systems check second-try"):
            text += command(*arguments.split(), **running.env)
    assert "audit entry could not be stored" not in text + running.logs
    (refused,) = [line for line in text.splitlines() if "not authorized" in line]
    assert "replSetGetConfig" in refused  # of the doctor, which leaves this out without the role clusterMonitor
    assert "Traceback" not in running.logs
    for secret in SECRETS:
        assert secret not in text


@pytest.mark.smoke
def test_documented_roles_allow_nothing_else(mongo: MongoWithRoles) -> None:
    with MongoClient[Any](mongo.url_of("qm")) as client:
        for act in REFUSED:
            with pytest.raises(OperationFailure, match="not authorized"):
                act(client[DATABASE])


@pytest.mark.smoke
@pytest.mark.parametrize("flag", ["QM_CONVERSATIONS", "QM_JOBS"])
def test_collections_of_systems_that_are_off_may_be_left_out(
    flag: str, clean: Servers, mongo: MongoWithRoles, change_settings: Callable[..., None]
) -> None:
    change_settings(**{**dict.fromkeys(COLLECTIONS, "false"), flag: "true"}, MONGO_DB_URL=mongo.url_of("qm"))
    left_out = {name for other, names in COLLECTIONS.items() if other != flag for name in names}
    privileges = documented(0)["privileges"]
    revoked = [one for one in privileges if one["resource"]["collection"] in left_out]
    assert {one["resource"]["collection"] for one in revoked} == left_out
    with MongoClient[Any](mongo.url_of("admin")) as client:
        client[DATABASE].command("revokePrivilegesFromRole", "queueManager", privileges=revoked)

    assert list(doctor.permissions()) == []
    assert diagnose(str(ObjectId())).unread == {}
    assert {one.problem for one in read_failures(systems()).sources} == {None}


def test_only_abandoned_transactions_are_ended(mongo: MongoWithRoles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGO_DB_URL", mongo.url_of("qm"))
    settings.cache_clear()
    living, dead = (MongoClient[Any](mongo.url_of("qm"), appname=database.APP_NAME) for _ in range(2))
    with living, living.start_session() as open_one:
        for session in (open_one, dead.start_session()):
            session.start_transaction()
            session.client[DATABASE].support_rooms.update_one({}, {"$set": {"status": "open"}}, session=session)
        dead.close()
        eventually(lambda: end_abandoned() == 1)
        open_one.commit_transaction()


def test_migrate_names_the_missing_rights_of_the_runtime_user(mongo: MongoWithRoles, valkey: Valkey) -> None:
    with pytest.raises(AssertionError, match="does not let this user create indexes") as error:
        migrate(mongo.url_of("qm"), valkey)
    assert PASSWORDS["qm"] not in str(error.value)


@pytest.mark.parametrize("mongo", [True], indirect=True)
def test_everything_works_by_srv_with_tls(mongo: MongoWithRoles, valkey: Valkey, tmp_path: Path) -> None:
    with dns_server(mongo.port, txt=f"replicaSet={REPLICA_SET}&authSource={DATABASE}") as port:
        env = {**env_with_dns(port), "REDIS_URL": valkey.url}
        migrate(mongo.url_of("qm-migrate"), valkey)  # by address, with TLS
        urls = [mongo.srv_url_of(user, NAME) for user in ("qm", "qm-migrate")]
        with processes(tmp_path, migrate_as=urls[1], **env, MONGO_DB_URL=urls[0]) as running:
            do_everything(running)
            text = shown(running)
        unknown = {**env, "MONGO_DB_URL": urls[0].replace(NAME, "no.such.name")}
        said = log_of_refused_start(CeleryProcess(tmp_path / "unknown", "worker", env=unknown))
    assert "MongoDB at mongodb+srv://***@no.such.name/" in said
    for secret in SECRETS:
        assert secret not in text + said


@pytest.mark.smoke
@pytest.mark.parametrize("process", ["migrate", "worker"])
def test_a_failed_dns_lookup_is_waited_for(process: str, servers: Servers, tmp_path: Path) -> None:
    is_broken = Event()
    is_broken.set()
    with dns_server(servers.mongo.port, txt=f"replicaSet={REPLICA_SET}", is_broken=is_broken) as port:
        env = {**env_with_dns(port), "MONGO_DB_URL": f"mongodb+srv://{NAME}/{DATABASE}?tls=false"}
        started = (
            CeleryProcess(tmp_path / "log", "worker", env=env)
            if process == "worker"
            else LoggedProcess(tmp_path / "log", *COMMAND[1:], process, env=env)
        )
        with started.start(ready=False):
            eventually(lambda: "is unreachable (All nameservers failed" in started.log)
            is_broken.clear()
            eventually(lambda: "is back" in started.log)
            if process == "migrate":
                eventually(lambda: started.exit_code() == 0)
            else:
                eventually(lambda: " ready." in started.log)
