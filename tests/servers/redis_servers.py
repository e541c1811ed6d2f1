"""Debian's Redis and Sentinel, with passwords and TLS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import redis

from dev.embedded import EmbeddedServer
from dev.ports import LOOPBACK
from dev.servers import Valkey
from queue_manager.core.redis_client import make_client
from tests.e2e.brokers import MASTER, SENTINEL, packaged
from tests.eventually import eventually
from tests.servers.certificates import Certificates

PASSWORD, SENTINEL_PASSWORD = "s3c/r@t", "s3nt/in@l"
SENTINELS = 3
FILES = {"tls-cert-file": "server.pem", "tls-key-file": "server.key", "tls-ca-cert-file": "ca.pem"}


def tls_config(port: int, certificates: Certificates) -> dict[str, str]:
    """Return the settings of a server that speaks TLS alone and asks clients for a certificate."""
    files = {name: certificates.path(file) for name, file in FILES.items()}
    return {"port": "0", "tls-port": str(port), **files, "tls-auth-clients": "yes", "tls-replication": "yes"}


class RedisServer(Valkey):
    """A Redis with a password; with certificates, it speaks TLS alone."""

    program = packaged("Redis", "redis-server", "redis-server")

    def __init__(self, directory: Path, *, certificates: Certificates | None = None, **config: str) -> None:
        super().__init__(directory, config={"requirepass": PASSWORD, "masterauth": PASSWORD, **config})
        self._certificates = certificates
        if certificates is not None:
            self._config |= tls_config(self.port, certificates)

    @property
    def url(self) -> str:
        if self._certificates is None:
            return super().url
        return super().url.replace("redis:", "rediss:") + f"?{self._certificates.for_redis}"

    @property
    def socket_url(self) -> str:
        return f"unix://:{quote(PASSWORD, safe='')}@{self._config['unixsocket']}?db=1"


class SentinelServer(EmbeddedServer):
    """One of several Sentinels, which watch the server at `port_of_master`."""

    program = SENTINEL

    def __init__(self, directory: Path, port_of_master: int, certificates: Certificates | None = None) -> None:
        super().__init__(directory)
        self._master, self._certificates = port_of_master, certificates

    @property
    def url(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def _command(self, program: str) -> list[str]:
        settings = {"bind": LOOPBACK, "port": str(self.port), "requirepass": SENTINEL_PASSWORD}
        if self._certificates is not None:
            settings |= tls_config(self.port, self._certificates)
        of_master = {
            "monitor": f"{LOOPBACK} {self._master} 2",
            "auth-pass": PASSWORD,
            "down-after-milliseconds": "1000",
            "failover-timeout": "5000",
        }
        lines = [
            *(f"{name} {value}" for name, value in settings.items()),
            *(f"sentinel {name} {MASTER} {value}" for name, value in of_master.items()),
        ]
        config = self.directory / "sentinel.conf"  # which it rewrites
        config.write_text("".join(f"{line}\n" for line in lines))
        return [program, str(config)]

    def client(self) -> redis.Redis:
        options = "" if self._certificates is None else f"?{self._certificates.for_redis}"
        scheme = "rediss" if options else "redis"
        return make_client(f"{scheme}://:{quote(SENTINEL_PASSWORD, safe='')}@{self.url}/0{options}")

    def _is_ready(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER))
        except (redis.RedisError, OSError):
            return False


@dataclass(frozen=True)
class Group:
    """A primary, its replica, and the Sentinels that watch them."""

    servers: Sequence[RedisServer]
    sentinels: Sequence[SentinelServer]
    certificates: Certificates | None

    @property
    def url(self) -> str:
        nodes = ",".join(one.url for one in self.sentinels)
        login, sentinel_login = quote(PASSWORD, safe=""), quote(SENTINEL_PASSWORD, safe="")
        tls = "" if self.certificates is None else f"&{self.certificates.for_redis}"
        return f"sentinel://:{login}@{nodes}/0?master_name={MASTER}&sentinel_password={sentinel_login}{tls}"

    def primary_port(self) -> int:
        """Return the port of the primary, by the last Sentinel."""
        with self.sentinels[-1].client() as client:
            return int(client.sentinel_get_master_addr_by_name(MASTER)[1])

    def wait_until_redundant(self) -> None:
        """Wait until the replica has everything, and each Sentinel knows the replica and the other Sentinels."""

        def is_redundant(sentinel: SentinelServer) -> bool:
            with sentinel.client() as client:
                master = client.sentinel_master(MASTER)
                return bool(master["num-slaves"] >= 1 and master["num-other-sentinels"] == SENTINELS - 1)

        with make_client(self.servers[1].url) as client:
            eventually(lambda: client.info("replication")["master_link_status"] == "up", within=30)
        for sentinel in self.sentinels:
            eventually(lambda sentinel=sentinel: is_redundant(sentinel), within=30)


@contextmanager
def sentinel_group(directory: Path, certificates: Certificates | None = None) -> Iterator[Group]:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(RedisServer(directory / f"redis{number}", certificates=certificates))
            for number in range(2)
        ]
        with make_client(servers[1].url) as client:
            client.replicaof(LOOPBACK, str(servers[0].port))
        sentinels = [
            stack.enter_context(SentinelServer(directory / f"sentinel{number}", servers[0].port, certificates))
            for number in range(SENTINELS)
        ]
        group = Group(servers, sentinels, certificates)
        group.wait_until_redundant()
        yield group
