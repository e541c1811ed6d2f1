"""The message queue on a Redis Cluster: any node may be named, and a failover is followed without a restart."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev.ports import free_port
from queue_manager.core.redis_client import make_client
from queue_manager.core.server_check import require_server
from queue_manager.core.settings import settings
from services import message_queue
from tests.e2e.celery_processes import CeleryProcess, LoggedProcess, log_of_refused_start
from tests.e2e.commands import COMMAND, environment
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.servers.everything import Processes, processes
from tests.servers.interruptions import FOLLOWS_WITHIN
from tests.servers.redis_cluster import QUEUE_NAME, Cluster, redis_cluster

pytestmark = pytest.mark.processes

MESSAGES = 20


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """An empty cluster."""
    owner = eventually(running.owner)
    owner.ask("FLUSHALL")
    return running


def use(url: str, monkeypatch: pytest.MonkeyPatch) -> message_queue.MessageQueue:
    """Return the queue of a new process with this URL."""
    monkeypatch.setenv("QM_QUEUE_REDIS_URL", url)
    monkeypatch.setenv("QUEUE_NAME", QUEUE_NAME)
    settings.cache_clear()
    for client in (message_queue._scripts, message_queue._arrivals):
        client.take()
    return message_queue.message_queue()


@pytest.fixture(autouse=True)
def queue_of_settings() -> Iterator[None]:
    yield
    settings.cache_clear()
    for client in (message_queue._scripts, message_queue._arrivals):
        client.take()


def test_any_node_of_the_cluster_leads_to_the_queue(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, node in enumerate(cluster.nodes):
        url = node.url.replace("redis:", "cluster:")
        require_server(url)
        queue = use(url, monkeypatch)
        queue.enqueue("mail", {"number": number})
    for number, node in enumerate(cluster.nodes):
        queue = use(node.url.replace("redis:", "cluster:"), monkeypatch)
        with queue.receive(timeout=5) as message:
            assert message is not None
            assert message.payload == {"number": number}
    assert message_queue.stats().numbers["acknowledged_total"] == len(cluster.nodes)


def test_an_unavailable_node_is_skipped(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = use(cluster.url.replace("@", "@127.0.0.1:1,"), monkeypatch)
    queue.enqueue("mail")
    assert queue.dequeue() is not None


def test_the_new_primary_is_used_although_the_old_one_keeps_its_connections(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = use(cluster.url, monkeypatch)
    queue.enqueue("mail", id="first")
    before = eventually(cluster.owner)
    replica = cluster.nodes[-1]
    replica.ask("CLUSTER", "FAILOVER")
    eventually(lambda: cluster.owner() is replica)
    assert before.is_running
    message = queue.dequeue()
    assert message is not None
    assert message.id == "first"
    queue.ack(message.id, message.lock_token)
    before.ask("CLUSTER", "FAILOVER")
    eventually(lambda: cluster.owner() is before)


def received(queue: message_queue.MessageQueue) -> list[tuple[str, int]]:
    """Receive and acknowledge everything; return the ids and attempts in their order."""
    found = []
    while message := queue.dequeue():
        found.append((message.id, message.fields["attempt_count"]))
        queue.ack(message.id, message.lock_token)
    return found


def paused_types() -> list[str] | None:
    """Return the paused types; `None` while the queue is unavailable."""
    try:
        return [*message_queue.queue_admin().pauses()]
    except message_queue.QueueUnavailable:
        return None


def test_a_pause_outlives_a_dead_consumer_and_a_restart_of_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "received"
    with redis_cluster(tmp_path / "cluster") as cluster:
        queue = use(cluster.url, monkeypatch)
        queue.enqueue_batch([{"type": "mail", "id": f"m{number}"} for number in range(7)])
        consumer = LoggedProcess(tmp_path / "consumer", "-m", "tests.servers.consumer", "mail", str(file), "600")
        with consumer.start(ready=False):
            eventually(file.exists)
            held = queue.dequeue(type="mail")
            assert held is not None
            message_queue.queue_admin().pause(["mail"], by="ada", reason="spilling mail")
        queue.enqueue("sms", id="s0")
        eventually(lambda: message_queue.sweeper().sweep().requeued == ["m0"])  # the consumer was killed
        assert received(queue) == [("s0", 1)]

        for node in cluster.nodes:
            node.kill()
        for node in cluster.nodes:
            node.start()
        assert eventually(paused_types) == ["mail"]
        queue.nack(held.id, held.lock_token)
        queue.enqueue_batch([{"type": "mail", "id": "m7"}, {"type": "sms", "id": "s1"}])
        assert received(queue) == [("s1", 1)]
        assert queue.dequeue(type="mail") is None
        assert message_queue.stats().numbers["pending"] == 8

        message_queue.queue_admin().resume(["mail"])
        assert received(queue) == [*((f"m{number}", 1) for number in range(2, 7)), ("m0", 2), ("m1", 2), ("m7", 1)]
        assert (paused_types(), message_queue.stats().numbers["acknowledged_total"]) == ([], 10)


def works(running: Processes) -> bool:
    """Return True if a message can be added, taken and acknowledged."""
    return running.add_message() == 201 and running.acknowledge(running.take()) == 200


def test_messages_continue_when_the_node_of_the_queue_dies(
    clean: Servers, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with redis_cluster(tmp_path / "cluster") as cluster:
        env = {"QM_QUEUE_REDIS_URL": cluster.url, "QUEUE_NAME": QUEUE_NAME, "ACK_TIMEOUT_SECONDS": "300"}
        with processes(tmp_path, **env) as running:
            assert [running.add_message() for _ in range(MESSAGES)] == [201] * MESSAGES
            taken = [running.take() for _ in range(MESSAGES // 2)]
            owner, replica = eventually(cluster.owner), cluster.nodes[-1]
            with make_client(owner.url) as on_owner:
                assert on_owner.wait(1, 10_000) == 1  # the replica has everything

            owner.kill()
            began = time.monotonic()
            eventually(lambda: cluster.owner() is replica)
            elected = time.monotonic() - began
            eventually(lambda: running.ask("GET", "/api/queue/status").status == 200)
            assert running.acknowledge(taken.pop()) == 200
            followed = time.monotonic() - began - elected
            figure(
                f"message queue after its node of a Redis Cluster was killed: replica elected after {elected:.1f} s, "
                f"then messages served after {followed:.1f} s"
            )
            assert followed <= FOLLOWS_WITHIN

            assert [running.acknowledge(one) for one in taken] == [200] * len(taken)
            left = running.ask("GET", "/api/queue/status").body["main"]
            assert left == MESSAGES // 2
            for _ in range(left):
                assert running.acknowledge(running.take()) == 200
            assert works(running)
            eventually(lambda: running.web.get("/readyz").status == 200)


@pytest.mark.parametrize(
    ("scheme", "name", "says"),
    [
        ("redis", QUEUE_NAME, "QM_QUEUE_REDIS_URL must be a URL such as cluster://host:6379/0"),
        ("cluster", "queue", "QUEUE_NAME='queue': must be a name in braces"),
    ],
)
def test_a_url_that_works_with_one_node_only_is_refused(
    scheme: str, name: str, says: str, cluster: Cluster, servers: Servers, tmp_path: Path
) -> None:
    url = cluster.nodes[0].url.replace("redis:", f"{scheme}:")
    env = {"QM_MESSAGE_QUEUE": "true", "QM_QUEUE_REDIS_URL": url, "QUEUE_NAME": name}
    assert says in log_of_refused_start(CeleryProcess(tmp_path / "worker", "worker", env=env))
    run = subprocess.run(
        [*COMMAND, "web", "--port", str(free_port())],
        env=environment(**env),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert says in run.stderr
