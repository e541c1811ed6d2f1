"""Loss of Redis: real workers and channels, while the server is killed."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from kombu import Connection
from redis import Redis

from dev.servers import Valkey
from queue_manager.broker.errors import ConnectionLost
from queue_manager.broker.options import register_transport, tls_options
from tests.broker.celery_process import CeleryProcess, lines
from tests.broker.guard_app import client_app
from tests.eventually import eventually

pytestmark = pytest.mark.crash


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "redis") as running:
        yield running


class Held:
    """A worker that holds one running task and one countdown."""

    def __init__(self, pool: str, server: Valkey, directory: Path) -> None:
        self.running, self.countdown = directory / f"{pool}-running", directory / f"{pool}-countdown"
        self._queue = pool
        self.worker = CeleryProcess(
            *("worker", f"--pool={pool}", "--concurrency=2", f"--hostname={pool}@%h", f"--queues={pool}"),
            "--loglevel=info",
            log=directory / f"{pool}.log",
            broker_url=server.url,
        )

    def send_work(self, app: Celery) -> None:
        app.send_task("guard_app.hold", [3, str(self.running)], queue=self._queue)
        app.send_task("guard_app.hold", [0, str(self.countdown)], queue=self._queue, countdown=3)
        self.worker.says(" received", times=2)
        eventually(lambda: lines(self.running) == ["started"])


def test_workers_survive_the_loss_of_redis_while_executing_tasks(server: Valkey, tmp_path: Path) -> None:
    prefork, threads = Held("prefork", server, tmp_path), Held("threads", server, tmp_path)
    with client_app(server.url) as app, prefork.worker, threads.worker:
        for held in (prefork, threads):
            held.worker.says(" ready.")
        for held in (prefork, threads):
            held.send_work(app)

        server.kill()
        for held in (prefork, threads):
            eventually(lambda held=held: lines(held.running) == ["started", "completed"])
        server.start()

        # The countdown comes back by the visibility timeout. The task that ended meanwhile is acknowledged when Redis
        # is back, unless it came back before: then it runs twice. Claims are for that.
        for held in (prefork, threads):
            eventually(lambda held=held: "completed" in lines(held.countdown))
            assert held.worker.is_alive
            assert "Unrecoverable" not in held.worker.log
        with Redis.from_url(server.url) as client:
            eventually(lambda: client.hlen("unacked") == 0)


def test_channel_that_lost_its_connection_raises_a_connection_error(server: Valkey) -> None:
    with Connection(server.url, transport=register_transport(server.url)) as connection:
        channel = connection.channel()
        channel.close()

        with pytest.raises(ConnectionLost) as lost:
            channel.qos.ack("tag")

        assert isinstance(lost.value, connection.recoverable_connection_errors)


def test_closing_requeues_delivered_messages(server: Valkey) -> None:
    with Connection(server.url, transport=register_transport(server.url)) as connection:
        queue = connection.SimpleQueue("work")
        queue.put("payload")
        queue.get(timeout=2)

    with Connection(server.url, transport=register_transport(server.url)) as connection:
        assert connection.default_channel._size("work") == 1


def test_commands_share_a_client_until_the_pool_is_replaced(server: Valkey) -> None:
    with Connection(server.url, transport=register_transport(server.url)) as connection:
        channel = connection.channel()
        first = channel._create_client()

        assert channel._create_client() is first
        channel._disconnect_pools()
        assert channel._create_client() is not first


def test_url_is_parsed_as_by_the_stock_transport() -> None:
    url = "redis://user:se%20cret@cache:6380/3"

    connection = Connection(url, transport=register_transport(url))

    assert connection.as_uri(include_password=True) == url
    assert (connection.hostname, connection.port, connection.virtual_host) == ("cache", 6380, "3")
    assert connection.transport.driver_type == "redis"


def test_rediss_is_encrypted_and_verified() -> None:
    url = "rediss://:secret@cache:6380/3"

    connection = Connection(url, transport=register_transport(url), ssl=tls_options(url))

    assert connection.transport.client.ssl == {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    assert connection.as_uri() == "rediss://:**@cache:6380/3"
