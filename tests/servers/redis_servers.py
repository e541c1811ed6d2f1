"""Debian's Redis and Sentinel, with passwords and TLS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import redis

from dev.embedded_server import EmbeddedServer
from dev.ports import LOOPBACK
from dev.servers import Valkey
from queue_manager.core.redis_client import make_client
from tests.deployment.programs import replaced
from tests.documented import block, options
from tests.e2e.brokers import SENTINEL, packaged
from tests.eventually import eventually
from tests.servers.certificates import URLS, Certificates

PASSWORD, SENTINEL_PASSWORD = "s3c/r@t", "s3nt/in@l"
SENTINELS = 3
MASTER = "orders"
QUOTED, QUOTED_SENTINEL = quote(PASSWORD, safe=""), quote(SENTINEL_PASSWORD, safe="")


def tls_config(port: int, certificates: Certificates) -> str:
    """Return the documented settings for TLS only, and for clients with a certificate."""
    return replaced(certificates.placed(block(1, heading="TLS")), {"tls-port 6379": f"tls-port {port}"})


def of_sentinel(number: int) -> str:
    return block(number, heading="Redis Sentinel")


class RedisServer(Valkey):
    """A Redis with a password; with certificates, it speaks TLS alone."""

    program = packaged("Redis", "redis-server", "redis-server")

    def __init__(
        self, directory: Path, config: Mapping[str, str] | None = None, *, certificates: Certificates | None = None
    ) -> None:
        passwords = options(of_sentinel(0).replace("password", PASSWORD))
        super().__init__(directory, config={**passwords, **(config or {})})
        self._certificates = certificates
        if certificates is not None:
            self._config |= options(tls_config(self.port, certificates))

    @property
    def url(self) -> str:
        if self._certificates is None:
            return super().url
        address = {":password@redis.internal:6379": f":{QUOTED}@{LOOPBACK}:{self.port}"}
        return replaced(self._certificates.placed(URLS["REDIS_URL"]), address)


def replica_of(primary: RedisServer) -> dict[str, str]:
    return options(replaced(of_sentinel(1), {"10.0.0.1 6379": f"{LOOPBACK} {primary.port}"}))


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
        port = f"port {self.port}\n"
        values = {
            "port 26379\n": port,
            "requirepass another": f"requirepass {SENTINEL_PASSWORD}",
            f"{MASTER} password": f"{MASTER} {PASSWORD}",
            "10.0.0.1 6379": f"{LOOPBACK} {self._master}",
            f"{MASTER} 5000": f"{MASTER} 1000",
            f"{MASTER} 15000": f"{MASTER} 5000",
        }
        lines = replaced(of_sentinel(2), values)
        if self._certificates is not None:
            lines = lines.replace(port, tls_config(self.port, self._certificates))
        config = self.directory / "sentinel.conf"  # which it rewrites
        config.write_text(f"bind {LOOPBACK}\n{lines}")
        return [program, str(config)]

    def client(self) -> redis.Redis:
        tls = "" if self._certificates is None else f"?{self._certificates.for_redis}"
        scheme = "rediss" if tls else "redis"
        return make_client(f"{scheme}://:{QUOTED_SENTINEL}@{self.url}/0{tls}")

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
        values = {":password@a:26379,b:26379,c:26379": f":{QUOTED}@{nodes}", "=another": f"={QUOTED_SENTINEL}"}
        tls = "" if self.certificates is None else f"&{self.certificates.for_redis}"
        return options(replaced(of_sentinel(3), values))["REDIS_URL"] + tls

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
            eventually(lambda: client.info("replication")["master_link_status"] == "up")
        for sentinel in self.sentinels:
            eventually(lambda sentinel=sentinel: is_redundant(sentinel))


@contextmanager
def sentinel_group(directory: Path, certificates: Certificates | None = None) -> Iterator[Group]:
    with ExitStack() as stack:
        primary = stack.enter_context(RedisServer(directory / "redis0", certificates=certificates))
        replica = RedisServer(directory / "redis1", replica_of(primary), certificates=certificates)
        servers = [primary, stack.enter_context(replica)]
        sentinels = [
            stack.enter_context(SentinelServer(directory / f"sentinel{number}", servers[0].port, certificates))
            for number in range(SENTINELS)
        ]
        group = Group(servers, sentinels, certificates)
        group.wait_until_redundant()
        yield group
