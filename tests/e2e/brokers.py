"""Brokers that kombu's own transports serve, as processes of this machine: `redis-sentinel` and `rabbitmq-server`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import amqp
from redis import Redis, RedisError

from dev.binaries import Program, ServerNotFound
from dev.children import spawn
from dev.embedded_server import EmbeddedServer
from dev.ports import LOOPBACK, free_port

USER, PASSWORD = "app", "r4bbit/s3cret"
QUOTED_PASSWORD = "r4bbit%2Fs3cret"
MASTER = "rooms-master"


@dataclass(frozen=True, kw_only=True)
class PackagedProgram(Program):
    """A program of a Debian package: a test fails without it, with the command that installs it."""

    package: str

    def find(self, environment: Mapping[str, str] = os.environ) -> Path:
        found = next(filter(None, map(shutil.which, self.commands)), None)
        if found is None:
            raise ServerNotFound(f"{self.name} was not found: apt install {self.package}")
        return Path(found)


def packaged(name: str, package: str, *commands: str) -> PackagedProgram:
    return PackagedProgram(name=name, package=package, commands=commands, variable="", in_wheel=lambda: None)


SENTINEL = packaged("Sentinel", "redis-sentinel", "redis-sentinel")
# Not the one on PATH, which would change to the user rabbitmq.
RABBITMQ = packaged("RabbitMQ", "rabbitmq-server", "/usr/lib/rabbitmq/bin/rabbitmq-server")
EPMD = packaged("epmd", "erlang-base", "epmd")


class Sentinel(EmbeddedServer):
    """One Sentinel that knows the server at `port_of_master`."""

    program = SENTINEL

    def __init__(self, directory: Path, port_of_master: int) -> None:
        super().__init__(directory)
        self._master = port_of_master

    @property
    def url(self) -> str:
        return f"sentinel://{LOOPBACK}:{self.port}/1?master_name={MASTER}"

    def _command(self, program: str) -> list[str]:
        config = self.directory / "sentinel.conf"  # which it rewrites
        config.write_text(f"bind {LOOPBACK}\nport {self.port}\nsentinel monitor {MASTER} {LOOPBACK} {self._master} 1\n")
        return [program, str(config)]

    def _is_ready(self) -> bool:
        try:
            with Redis(port=self.port) as client:
                return bool(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER))
        except (RedisError, OSError):
            return False


class RabbitMQ(EmbeddedServer):
    """A RabbitMQ with its own directory of nodes (epmd), which would otherwise outlive it as a daemon."""

    program = RABBITMQ

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._epmd_port = free_port()

    def __enter__(self) -> Self:
        self._epmd = spawn([str(EPMD.find()), "-address", LOOPBACK, "-port", str(self._epmd_port)])
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        self.kill()  # nobody looks at its data any more
        self._epmd.kill()

    @property
    def url(self) -> str:
        return f"amqp://{USER}:{QUOTED_PASSWORD}@{LOOPBACK}:{self.port}//"

    def _command(self, program: str) -> list[str]:
        config = self.directory / "rabbitmq.conf"
        config.write_text("".join(f"{name} = {value}\n" for name, value in self._config().items()))
        settings = {
            **self.of_its_node,
            "RABBITMQ_DIST_PORT": free_port(),
            "RABBITMQ_MNESIA_BASE": self.directory / "data",
            "RABBITMQ_PID_FILE": self.directory / "pid",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.directory / "plugins",
            "RABBITMQ_CONFIG_FILE": config,
            "RABBITMQ_LOGS": "-",
        }
        return ["env", *(f"{name}={value}" for name, value in settings.items()), program]

    def control(self, *arguments: str) -> None:
        """Run `rabbitmqctl`."""
        env = {**os.environ, **self.of_its_node}
        subprocess.run([str(RABBITMQ.find().with_name("rabbitmqctl")), *arguments], env=env, check=True)

    @property
    def of_its_node(self) -> dict[str, str]:
        """The environment in which `rabbitmqctl` finds it."""
        return {
            "HOME": str(self.directory),
            "RABBITMQ_NODENAME": "qm@localhost",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
        }

    def _config(self) -> dict[str, str]:
        return {"listeners.tcp.default": f"{LOOPBACK}:{self.port}", "default_user": USER, "default_pass": PASSWORD}

    def _is_ready(self) -> bool:
        try:
            self.connect(USER, "/")
            return True
        except (amqp.AMQPError, OSError):
            return False

    def connect(self, user: str, virtual_host: str) -> None:
        """Open a connection, and close it again. Raises AMQPError if the user may not."""
        login = {"userid": user, "password": PASSWORD, "virtual_host": virtual_host}
        with amqp.Connection(f"{LOOPBACK}:{self.port}", **login, connect_timeout=2, ssl=self._tls()):
            pass

    def _tls(self) -> dict[str, Any] | None:
        """Return py-amqp's options of TLS."""
        return None
