"""The system under test: three MongoDB members, a Redis, and two of each process of the Procfile.

Each process reaches Redis through a proxy of its own.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Lock
from typing import Any, Self

import redis

from beat_schedule import SYSTEMS
from benchmarks import release
from benchmarks.harness import set_environment
from dev.binaries import VALKEY
from dev.ports import LOOPBACK, free_port
from dev.processes import children
from dev.procfile import RELEASE, Process, read
from dev.servers import Valkey
from models import database, schema
from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.beat.status import leadership
from queue_manager.telemetry import worker_heartbeats
from tests.e2e.celery_processes import ROOT, TESTS, LoggedProcess
from tests.e2e.replica_set import Member, ReplicaSet, replica_set
from tests.e2e.tcp_proxy import TcpProxy
from tests.eventually import eventually
from tests.faults import clocks, isolation
from tests.faults.app import LOG_VARIABLE as POISON_LOG_VARIABLE
from tests.faults.app import STACKS_SIGNAL
from tests.faults.clocks import Clock
from tests.faults.history import JOB_LEASE, RoomEvent
from tests.faults.job_works import LOG_VARIABLE

COPIES = 2
READY_WITHIN = 120.0  # seconds
HTTP_TIMEOUT = 5.0  # seconds
STACKS_TIME = 0.2  # seconds in which processes write their stacks
LEFT_OUT = (RELEASE, "flower")  # it only watches
EVENTS = "socket.io"
REDIS_DISK, MONGODB_DISK = 256, 1_024  # megabytes
REDIS_CONFIG = {"repl-diskless-sync-delay": "0"}
SETTINGS = {
    "QM_CONVERSATIONS": "true",
    "QM_MESSAGE_QUEUE": "true",
    "QM_JOBS": "true",
    "QM_SNOOZE_SCAN_SECONDS": "1",
    "QM_LEASE_SECONDS": "5",
    "QM_ITEM_TIMEOUT_SECONDS": "12",  # longer than an outage of MongoDB blocks an item, also on a busy machine
    "QM_SHUTDOWN_SECONDS": "3",
    "QM_WORKER_CONCURRENCY": "2",
    "JOBS_IMPORTS": '["tests.faults.job_works"]',
    "JOBS_LEASE_SECONDS": str(JOB_LEASE),
    "JOBS_TIMER_MS": "1000",
    "OVERDUE_CHECK_INTERVAL_MS": "1000",
    "SOCKETIO_ADAPTER": "python,redis-streams",  # a stream can be read when a schedule is over
}


class IsolatedMember(Member):
    """A member of MongoDB on a small disk, which the firewall knows by its port, and whose clock can be set."""

    def __init__(self, directory: Path) -> None:
        isolation.mount_disk(directory, MONGODB_DISK)
        self.clock = Clock(directory.with_suffix(".clock"))
        super().__init__(directory)

    def _command(self, program: str) -> list[str]:
        return [*isolation.in_group(self.port), *self.clock.preloaded, *super()._command(program)]


class IsolatedValkey(Valkey):
    """A Redis on a small disk, whose clock can be set."""

    fsync = "no"  # a process that is killed loses nothing that it has written, and no write waits for a disk

    def __init__(self, directory: Path) -> None:
        isolation.mount_disk(directory, REDIS_DISK)
        self.clock = Clock(directory.with_suffix(".clock"))
        super().__init__(directory, config=REDIS_CONFIG)

    def _command(self, program: str) -> list[str]:
        return [*self.clock.preloaded, *super()._command(program)]


class SystemProcess(LoggedProcess):
    """A process of the system, whose clock can be set, with its way to Redis."""

    def __init__(self, directory: Path, name: str, *command: str, proxy: TcpProxy) -> None:
        self.name, self.proxy = name, proxy
        self.clock = Clock(directory / f"{name}.clock")
        env = {clocks.VARIABLE: str(self.clock.file), "REDIS_URL": proxy.redis_url}
        self.started_at = 0.0
        super().__init__(directory / f"{name}.log", *command, env=env)
        self._command = [*isolation.in_group(name), *self._command]
        self.run_release(ROOT)

    def run_release(self, source: Path) -> None:
        """Run the release whose files are in this directory, from the next start on."""
        self._cwd = source
        self._env["PYTHONPATH"] = f"{TESTS / 'shifted_clock'}:{source}"

    def start(self, *, ready: bool = True) -> Self:
        self.started_at = time.monotonic()
        return super().start(ready=ready)

    def children(self) -> list[int]:
        return sorted(children(self.pid))

    def write_stacks(self) -> None:
        """Let a Celery process and its children write to the log what they do."""
        if not self.name.startswith("web"):
            send_signal([self.pid, *self.children()], STACKS_SIGNAL)
            time.sleep(STACKS_TIME)

    def restart(self) -> None:
        self.kill()  # and what it left behind
        self.start(ready=False)

    def last_words(self) -> str:
        lines = [line for line in self.log.splitlines()[-400:] if "Error" in line or "error" in line]
        return " | ".join(lines[-3:])[-500:]


class World:
    """The servers and processes, and what only they know of the past."""

    def __init__(
        self, directory: Path, mongo: ReplicaSet, first_redis: IsolatedValkey, previous_release: Path | None
    ) -> None:
        self.directory, self.mongo, self.redis = directory, mongo, first_redis
        self.previous_release = previous_release
        """The directory with its files; `None` in a clone without its history."""
        self.processes: dict[str, SystemProcess] = {}
        self.web_ports: dict[str, int] = {}
        self.losses: list[float] = []
        """When Redis lost its data."""
        self.locks = defaultdict[str, Lock](Lock)
        """By target: a fault begins after the one before it, however long that one takes."""
        self.complaints: list[str] = []
        """Processes that did not end when they should."""
        self._lost_events: list[RoomEvent] = []
        self._next_redis = 1

    @property
    def mongodb_clocks(self) -> list[Clock]:
        return [member.clock for member in self.mongo.members if isinstance(member, IsolatedMember)]

    @property
    def job_log(self) -> Path:
        return self.directory / "jobs.log"

    @property
    def poison_log(self) -> Path:
        return self.directory / "poison.log"

    # Processes

    def add(self, process: Process, number: int, proxy: TcpProxy) -> None:
        name = f"{process.name}{number}"
        program, *arguments = shlex.split(process.command)
        if program == "celery":
            changed = {"tasks": "tests.faults.app", f"{process.name}@%h": f"{name}@%h"}
            command = ["-m", "celery", *(changed.get(word, word) for word in arguments)]
        else:
            self.web_ports[name] = free_port()
            command = ["-c", "from queue_manager.cli import main; main()", *arguments]
            command += ["--port", str(self.web_ports[name])]
        self.processes[name] = SystemProcess(self.directory, name, *command, proxy=proxy)

    def wait_until_ready(self) -> None:
        """Wait until every worker is online, a beat leads and the web processes are ready."""
        workers = {name for name in self.processes if name.rstrip("0123456789") not in ("beat", "web")}
        with self.connect() as client:
            eventually(lambda: self._online(client) >= workers, within=READY_WITHIN, every=0.1)
            eventually(lambda: leadership(client, LEADER_LOCK), within=READY_WITHIN, every=0.1)
        for port in self.web_ports.values():
            eventually(lambda port=port: self._is_ready(port), within=READY_WITHIN, every=0.1)
        eventually(self.mongo.is_complete, within=READY_WITHIN, every=0.1)

    def _online(self, client: redis.Redis) -> set[str]:
        pids = {worker.pid for worker in worker_heartbeats.online(client)}
        return {name for name, process in self.processes.items() if process.pid in pids}

    @staticmethod
    def _is_ready(port: int) -> bool:
        try:
            return call(port, "GET", "/readyz")[0] == 200
        except (OSError, HTTPException):
            return False

    def revive(self) -> list[str]:
        """Start the processes that ended by themselves; return what can be said of each."""
        ended = [process for process in self.processes.values() if not process.is_alive()]
        deaths = [f"{one.name} ended with {one.exit_code()}: {one.last_words()}" for one in ended]
        for process in ended:
            process.restart()
        deaths, self.complaints = deaths + self.complaints, []
        return deaths

    def write_stacks(self) -> None:
        """Let the Celery processes write to their logs what they do."""
        for process in self.processes.values():
            process.write_stacks()

    # Redis

    @property
    def proxies(self) -> list[TcpProxy]:
        return [process.proxy for process in self.processes.values()]

    def connect(self) -> redis.Redis:
        """Return a client of the Redis that is the primary now, not through the proxy."""
        return redis.Redis.from_url(self.redis.url, decode_responses=True, socket_timeout=10)

    def add_redis(self) -> IsolatedValkey:
        server = IsolatedValkey(self.directory / f"redis{self._next_redis}")
        self._next_redis += 1
        server.start()
        return server

    def fail_over(self) -> IsolatedValkey:
        """Make a new server the primary, which has all data. Return the old one: a replica with open connections."""
        old, new = self.redis, self.add_redis()
        with redis.Redis.from_url(new.url, decode_responses=True) as on_new, self.connect() as on_old:
            on_new.replicaof(LOOPBACK, str(old.port))
            eventually(lambda: on_new.info("replication")["master_link_status"] == "up")
            on_old.execute_command("FAILOVER", "TO", LOOPBACK, str(new.port))
            eventually(lambda: on_new.info("replication")["role"] == "master")
        self.redis = new
        for proxy in self.proxies:
            proxy.target = new.port
        return old

    def lose_data(self, *, restart: bool) -> None:
        """Let Redis lose everything, at once or by a restart. What was told until then is known."""
        with self.connect() as client:
            if not restart:
                with client.pipeline(transaction=True) as pipe:
                    pipe.xrange(EVENTS)
                    pipe.flushall()
                    entries, _ = pipe.execute()
            else:
                client.client_pause(10_000, all=False)  # no write between the reading and the end
                entries = client.xrange(EVENTS)
                self.redis.kill()
                shutil.rmtree(self.redis.directory / "appendonlydir")
        self.losses.append(time.monotonic())
        self._lost_events += map(_event, entries)

    def events(self) -> list[RoomEvent]:
        """Return all events of rooms, also those that Redis has lost."""
        with self.connect() as client:
            return self._lost_events + [_event(entry) for entry in client.xrange(EVENTS)]

    def forget(self) -> None:
        """Forget the events, losses and job runs of a schedule that is over."""
        with self.connect() as client:
            client.delete(EVENTS)
        self._lost_events.clear()
        self.losses.clear()
        self.job_log.write_text("")
        self.poison_log.write_text("")


def _event(entry: Any) -> RoomEvent:
    _, data = json.loads(entry[1]["data"])["packet"]["data"]
    return RoomEvent(room=data["room_id"], woken=data["timestamp"])


def call(port: int, method: str, path: str, body: Any = None, *, timeout: float = HTTP_TIMEOUT) -> tuple[int, str]:
    """Return status and text of an answer. Raises OSError or HTTPException if there is none."""
    connection = HTTPConnection(LOOPBACK, port, timeout=timeout)
    try:
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@contextmanager
def running_world(directory: Path) -> Iterator[World]:
    """Start everything in an empty directory, and wait until it is ready."""
    if wheel := VALKEY.in_wheel():  # the same server on every machine
        os.environ.setdefault(VALKEY.variable, str(wheel))
    first_redis = IsolatedValkey(directory / "redis0")
    with ExitStack() as stack:
        stack.callback(isolation.remove_disks)
        mongo = stack.enter_context(replica_set(directory / "mongo", IsolatedMember))
        first_redis.start()
        previous_release = stack.enter_context(release.checked_out(release.LATEST))
        world = World(directory, mongo, first_redis, previous_release)
        stack.callback(lambda: world.redis.kill())
        set_environment(MONGO_DB_URL=mongo.url, REDIS_URL=first_redis.url, **SETTINGS)
        os.environ |= {LOG_VARIABLE: str(world.job_log), POISON_LOG_VARIABLE: str(world.poison_log)}
        world.job_log.touch()
        database.close()
        stack.callback(database.close)
        schema.migrate(SYSTEMS)
        for process in read(ROOT / "Procfile"):
            for number in range(1, COPIES + 1) if process.name not in LEFT_OUT else ():
                world.add(process, number, stack.enter_context(TcpProxy(first_redis.port)))
        for one in world.processes.values():
            stack.callback(one.kill)
            one.start(ready=False)
        world.wait_until_ready()
        yield world


def send_signal(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to processes, of which some may have ended."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
