"""Embedded servers: they answer, keep their data over a crash, stay private, and say clearly why they cannot start."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from redis import Redis

from dev.binaries import MONGOD, VALKEY, Program, ServerNotFound
from dev.embedded_server import EmbeddedServer, ServerFailed
from dev.ports import LOOPBACK, free_port
from dev.processes import started_at
from dev.servers import Mongo, Valkey
from queue_manager.core.server_check import MIN_REDIS_VERSION
from queue_manager.doctor.mongodb import MIN_MONGODB_VERSION


def mongo_client(server: Mongo) -> MongoClient[dict[str, Any]]:
    return MongoClient(server.url, serverSelectionTimeoutMS=5_000)


def only_owner_may_enter(directory: Path) -> bool:
    return stat.S_IMODE(directory.stat().st_mode) == 0o700


def command_line(pid: int) -> str:
    return subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True).stdout


def test_valkey_answers_privately_and_evicts_nothing(tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as server, Redis.from_url(server.url) as client:
        assert client.ping()
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("bind") == {"bind": LOOPBACK}
        assert only_owner_may_enter(server.directory)


def test_killed_valkey_starts_again_on_its_port_with_its_data(tmp_path: Path) -> None:
    with Valkey(tmp_path) as server:
        port = server.port
        with Redis.from_url(server.url) as client:
            client.set("kept", "yes")
            server.kill()
            server.start()
            assert client.get("kept") == b"yes"
        assert server.port == port


@pytest.mark.slow
def test_mongo_is_a_writable_replica_set_and_keeps_its_writes_over_a_kill(tmp_path: Path) -> None:
    with Mongo(tmp_path / "mongo") as server, mongo_client(server) as client:
        things = client.get_default_database()["things"]
        things.insert_one({"_id": 1})
        server.kill()
        server.start()
        assert things.find_one() == {"_id": 1}
        assert client.admin.command("hello")["setName"] == "qm"
        assert only_owner_may_enter(server.directory)


@pytest.mark.slow
def test_mongo_data_can_be_used_on_another_port(tmp_path: Path) -> None:
    with Mongo(tmp_path) as first:
        with mongo_client(first) as client:
            client.get_default_database()["things"].insert_one({"_id": 1})
        first.kill()
    with Mongo(tmp_path) as second, mongo_client(second) as client:
        assert second.port != first.port
        assert client.get_default_database()["things"].find_one() == {"_id": 1}


def test_a_stopped_server_leaves_no_process(tmp_path: Path) -> None:
    server = Valkey(tmp_path)
    server.start()
    pid = server.pid
    server.stop()
    assert started_at(pid) is None
    with pytest.raises(ServerFailed, match="is not running"):
        _ = server.pid


def test_a_password_is_not_on_the_command_line(tmp_path: Path) -> None:
    with Valkey(tmp_path, config={"requirepass": "open-sesame"}) as server:
        with Redis.from_url(server.url) as client:
            assert client.ping()
        assert "open-sesame" not in command_line(server.pid)


def test_a_server_that_ends_at_its_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="no-such-option"):
        Valkey(tmp_path, config={"no-such-option": "1"}).start()


@pytest.mark.parametrize("kind", [Valkey, Mongo])
def test_another_server_on_the_port_is_not_mistaken_for_ours(tmp_path: Path, kind: type[EmbeddedServer]) -> None:
    with Valkey(tmp_path / "stranger") as stranger:
        with pytest.raises(ServerFailed, match="in use"):
            kind(tmp_path / "server", stranger.port).start()


def test_the_next_free_port_is_used_instead_of_a_busy_one() -> None:
    with socket.create_server((LOOPBACK, free_port())) as busy:
        taken = busy.getsockname()[1]
        assert taken < free_port(taken) < taken + 100


PORTS_OF_ONE_PROCESS = """
import sys
from dev.ports import free_port
sys.stdin.readline()
print(*[free_port(int(sys.argv[1])) for _ in range(20)], flush=True)
sys.stdin.readline()
"""


def test_processes_that_ask_at_the_same_time_get_different_ports() -> None:
    wanted = free_port()
    with ExitStack() as stack:
        command = [sys.executable, "-c", PORTS_OF_ONE_PROCESS, str(wanted)]
        processes = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(4)
        ]
        for process in processes:  # each waits for this line, so that all ask at the same moment
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        lines = [process.stdout.readline() for process in processes if process.stdout is not None]
        ports = [int(port) for line in lines for port in line.split()]
    assert len(ports) == 80
    assert len({wanted, *ports}) == 81


def test_a_port_is_free_again_when_its_process_has_ended_although_a_child_lives_on() -> None:
    script = (
        "import os, subprocess; from dev.ports import free_port; port = free_port();"
        "child = os.fork() or os.execlp('sleep', 'sleep', '60'); print(port, child, flush=True); os._exit(0)"
    )
    output = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with output:
        assert output.stdout is not None
        port, child = map(int, output.stdout.readline().split())
    try:
        assert free_port(port) == port
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_program_is_searched_in_the_environment_then_path_then_the_wheel(tmp_path: Path) -> None:
    on_path, in_wheel = runnable(tmp_path / "mongod"), tmp_path / "wheel"
    program = Program(name="MongoDB", variable="BIN", commands=("mongod",), in_wheel=lambda: in_wheel)
    named = runnable(tmp_path / "named")
    assert program.find({"BIN": str(named), "PATH": str(tmp_path)}) == named
    assert program.find({"PATH": str(tmp_path)}) == on_path
    assert program.find({"PATH": str(tmp_path / "nothing")}) == in_wheel


@pytest.mark.parametrize(
    ("program", "old", "new"),
    [
        (VALKEY, "Redis server v=6.0.16 sha=00000000:0 bits=64", "Redis server v=7.0.15 sha=00000000:0 bits=64"),
        (MONGOD, "db version v5.0.22", "db version v6.0.19"),
    ],
)
def test_a_program_on_path_that_is_too_old_is_passed_over(program: Program, old: str, new: str, tmp_path: Path) -> None:
    command = program.commands[-1]
    old_one = runnable(tmp_path / "old" / command, old)
    new_one = runnable(tmp_path / "new" / command, new)
    in_wheel = replace(program, in_wheel=lambda: tmp_path / "wheel")
    assert in_wheel.find({"PATH": str(new_one.parent)}) == new_one
    assert in_wheel.find({"PATH": str(old_one.parent)}) == tmp_path / "wheel"
    assert in_wheel.find({"PATH": "", program.variable: str(old_one)}) == old_one
    with pytest.raises(ServerNotFound, match="or newer"):
        replace(program, in_wheel=lambda: None).find({"PATH": str(old_one.parent)})


def test_programs_on_path_must_be_as_new_as_servers() -> None:
    assert (VALKEY.oldest, MONGOD.oldest) == (MIN_REDIS_VERSION, MIN_MONGODB_VERSION)


@pytest.mark.parametrize("program", [VALKEY, MONGOD])
def test_error_of_a_missing_program_names_what_to_install_and_the_variable(program: Program) -> None:
    missing = Program(name=program.name, variable=program.variable, commands=program.commands, in_wheel=lambda: None)
    with pytest.raises(ServerNotFound) as caught:
        missing.find({"PATH": ""})
    assert 'pip install "queue-manager[embedded]"' in str(caught.value)
    assert program.variable in str(caught.value)


def test_a_variable_without_an_existing_program_is_an_error() -> None:
    with pytest.raises(ServerNotFound, match="QM_MONGOD_BIN='/no/such/mongod' is not a program"):
        MONGOD.find({"QM_MONGOD_BIN": "/no/such/mongod"})


def runnable(path: Path, printed: str = "db version v7.0.5") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{printed}'\n")
    path.chmod(0o755)
    return path
