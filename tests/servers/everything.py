"""Everything that Queue Manager does with its servers, in real processes; and everything that these show."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bson import ObjectId

from dev.ports import LOOPBACK, free_port
from models import job, schema
from models.database import collection, server_now
from queue_manager.core.clock import seconds
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.commands import COMMAND, environment
from tests.e2e.job_processes import ENV as JOBS
from tests.e2e.job_processes import job_lab, notes
from tests.e2e.test_shown_settings import celery, with_settings
from tests.e2e.watching import is_open
from tests.eventually import eventually
from tests.rooms import get_room, make_room
from tests.web.credentials import KEYS, OPERATOR, cookie
from tests.web.listener import Listener
from tests.web.queue_client import Stream
from tests.web.web_process import SNOOZE, Answer, Web, web

ENV = {
    **JOBS,
    "QM_CONVERSATIONS": "true",
    "QM_SNOOZE_SCAN_SECONDS": "1",
    "QM_SYSTEMS": "tests.e2e.second_try",
    "QM_MESSAGE_QUEUE": "true",
    "QM_HOOKS": "true",
    "SOCKETIO_ADAPTER": "python,redis,redis-streams",
    "QM_API_KEYS": KEYS,
}


@dataclass(frozen=True)
class Processes:
    """A worker, a beat and a web process."""

    worker: CeleryProcess
    beat: CeleryProcess
    web: Web
    directory: Path
    env: Mapping[str, str]

    @property
    def logs(self) -> str:
        return self.worker.log + self.beat.log + self.web.log

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        return self.web.ask(method, path, body, X_API_KEY=OPERATOR)

    def add_message(self) -> int:
        return self.ask("POST", "/api/queue/message", {"type": "mail"}).status

    def take(self) -> Any:
        return self.ask("GET", "/api/queue/message").body

    def acknowledge(self, message: Any) -> int:
        return self.ask("POST", "/api/queue/ack", {name: message[name] for name in ("id", "lock_token")}).status

    def metrics(self) -> str:
        return self.ask("GET", "/metrics").text


@contextmanager
def processes(directory: Path, *, migrate_as: str | None = None, **env: str) -> Iterator[Processes]:
    """Start them, after a migration, for which `migrate_as` is another URL of MongoDB."""
    env = {**ENV, **env}
    if schema.multikey(job.JOB_INDEXES):  # an earlier test stored lists, which the doctor would report
        job.jobs().drop_indexes()
    command("migrate", **{**env, **({} if migrate_as is None else {"MONGO_DB_URL": migrate_as})})
    with (
        worker(directory / "worker", "--hostname", "one@h", env=env) as the_worker,
        CeleryProcess(directory / "beat", "beat", env=env) as beat,
        web(directory, **env) as the_web,
    ):
        yield Processes(the_worker, beat, the_web, directory, env)


def command(*arguments: str, **env: str) -> str:
    """Return what `queue-manager …` prints, which must succeed.

    It is not forked: the process from which it would be forked may have another network.
    """
    run = subprocess.run([*COMMAND, *arguments], env=environment(**env), capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def do_everything(running: Processes) -> None:
    """Let a room open and its event arrive, an item be tried again, a job run, a message pass, someone log out."""
    account = ObjectId()
    with (
        Listener(running.web.port, {"token": OPERATOR}) as client,
        Stream(running.web, X_API_KEY=OPERATOR) as stream,
    ):
        assert client.call("join", str(account)) == {"joined": [str(account)]}
        room = make_room(server_now() - seconds(1), account_id=account)
        eventually(lambda: is_open(room))
        assert client.next_event()[1]["room_id"] == str(room)
        assert running.add_message() == 201
        assert stream.until(lambda event: event["type"] == "enqueue")
    assert running.acknowledge(running.take()) == 200
    assert get_room(room)["status"] == "open"

    trial = collection("second_try").insert_one({"status": "trial", "ends_at": server_now()}).inserted_id
    job_lab().run("now")
    eventually(lambda: (collection("second_try").find_one({"_id": trial}) or {})["status"] == "expired")
    eventually(lambda: len(notes("now")) == 1)

    session = {"Cookie": cookie(running.web, OPERATOR), "Sec_Fetch_Site": "same-origin"}
    assert running.web.post("/logout", **session).status == 303
    assert running.web.get("/api/queue/status", **session).status == 401
    eventually(lambda: running.web.get("/readyz").status == 200)
    assert " 0.0" not in "".join(line for line in running.metrics().splitlines(True) if "queue_manager_up{" in line)
    assert running.ask("POST", SNOOZE).status in (202, 409)  # 409: that of the beat is running


def shown(running: Processes) -> str:
    """Return what logs, reports, health, the doctor, our pages and Flower's show of the settings."""
    env = dict(running.env)
    health, doctor = (eventually(lambda name=name: command(name, **env)) for name in ("health", "doctor"))
    inspected = [
        celery("inspect", what, "--json", "--timeout", "10", "--destination", "one@h", **env)
        for what in ("conf", "stats", "report")
    ]
    pages = [running.ask("GET", path).text for path in ("/", "/messages", "/api/overview", "/readyz?deep")]
    reports = [health, doctor, celery("report", **env), *inspected]
    return "\n".join([running.logs, *reports, *pages, shown_by_flower(running)])


def shown_by_flower(running: Processes) -> str:
    port = free_port()
    options = {"FLOWER_UNAUTHENTICATED_API": "1", "FLOWER_PORT": str(port), "FLOWER_ADDRESS": LOOPBACK}
    with CeleryProcess(running.directory / "flower", "flower", env={**running.env, **options}) as flower:
        pages = ("api/workers?refresh=1", "worker/one@h")
        shown = [eventually(lambda page=page: with_settings(f"http://{LOOPBACK}:{port}/{page}")) for page in pages]
        return "\n".join([flower.log, *shown])
