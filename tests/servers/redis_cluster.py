"""A Redis Cluster on this machine: three primaries, and a replica of the one that serves the message queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from redis.exceptions import MovedError, RedisError

from dev.ports import LOOPBACK, free_port
from dev.servers import Valkey
from queue_manager.core.redis_client import make_client
from tests.deployment.programs import replaced
from tests.documented import block, options
from tests.eventually import eventually

PRIMARIES, SLOTS = 3, 16_384
PASSWORD = "s3c/r@t"
DOCUMENTED = options(block(0, heading="Redis Cluster"))
QUEUE_NAME = DOCUMENTED["QUEUE_NAME"]


class Node(Valkey):
    def __init__(self, directory: Path) -> None:
        self.bus_port = free_port()  # by default port + 10,000, which an outgoing connection may have
        config = {
            "cluster-enabled": "yes",
            "cluster-port": str(self.bus_port),
            "cluster-node-timeout": "1000",
            "cluster-replica-validity-factor": "0",
            "requirepass": PASSWORD,
            "masterauth": PASSWORD,
        }
        super().__init__(directory, config=config)

    def ask(self, *command: Any) -> Any:
        with make_client(self.url, decode_responses=True) as client:
            return client.execute_command(*command)

    def knows(self, count: int) -> bool:
        """Return True if it knows so many nodes, and that all slots are served."""
        info = self.ask("CLUSTER", "INFO").splitlines()
        return {"cluster_state:ok", f"cluster_known_nodes:{count}"} <= {*info}

    def is_synchronized(self) -> bool:
        """Return True if it is a replica and has everything."""
        return bool(self.ask("INFO", "replication").get("master_link_status") == "up")


@dataclass(frozen=True)
class Cluster:
    nodes: Sequence[Node]

    @property
    def url(self) -> str:
        """The documented URL, which names all nodes."""
        nodes = ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes)
        address = {":password@a:6379,b:6379,c:6379": f":{quote(PASSWORD, safe='')}@{nodes}"}
        return replaced(DOCUMENTED["QM_QUEUE_REDIS_URL"], address)

    def owner(self) -> Node | None:
        """Return the node that serves the message queue now; `None` if none does."""
        for node in self.nodes:
            try:
                node.ask("EXISTS", QUEUE_NAME)
                return node
            except RedisError as error:
                if isinstance(error, MovedError):
                    found = next(one for one in self.nodes if one.port == error.port)
                    if found.is_running:
                        return found
        return None


@contextmanager
def redis_cluster(directory: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node(directory / f"node{number}")) for number in range(PRIMARIES + 1)]
        *primaries, replica = nodes
        for number, node in enumerate(primaries):
            begin, end = (SLOTS * one // PRIMARIES for one in (number, number + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", begin, end - 1)
            replica.ask("CLUSTER", "MEET", LOOPBACK, node.port, node.bus_port)
        for node in nodes:
            eventually(lambda node=node: node.knows(len(nodes)))
        cluster = Cluster(nodes)
        owner = eventually(cluster.owner)
        replica.ask("CLUSTER", "REPLICATE", owner.ask("CLUSTER", "MYID"))
        eventually(replica.is_synchronized)
        yield cluster
