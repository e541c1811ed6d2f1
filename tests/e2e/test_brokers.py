"""The whole path on every broker and transport: a snoozed room opens, an item is tried again, a job runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from models.database import collection, server_now
from queue_manager.core.clock import seconds
from tests.e2e.brokers import PASSWORD, QUOTED_PASSWORD, RabbitMQ, Sentinel
from tests.e2e.celery_processes import CeleryProcess, log_of_refused_start, worker
from tests.e2e.commands import environment, queue_manager
from tests.e2e.job_processes import ENV as JOBS
from tests.e2e.job_processes import job_lab, notes
from tests.e2e.test_shown_settings import celery
from tests.e2e.watching import is_open, woken
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.web_process import SNOOZE, web

pytestmark = pytest.mark.processes

SYSTEMS = {"QM_CONVERSATIONS": "true", "QM_SNOOZE_SCAN_SECONDS": "1", "QM_SYSTEMS": "tests.e2e.second_try"}
ROOMS = 40
Broker = Callable[[Servers, Path], AbstractContextManager[dict[str, str]]]


@contextmanager
def stock_redis(servers: Servers, directory: Path) -> Iterator[dict[str, str]]:
    yield {"QM_BROKER": "stock"}


@contextmanager
def without_batches(servers: Servers, directory: Path) -> Iterator[dict[str, str]]:
    yield {"QM_BATCHING": "false"}


@contextmanager
def another_redis(servers: Servers, directory: Path) -> Iterator[dict[str, str]]:
    yield {"BROKER_URL": servers.valkey.url.removesuffix("0") + "2"}


@contextmanager
def sentinel(servers: Servers, directory: Path) -> Iterator[dict[str, str]]:
    with Sentinel(directory / "sentinel", servers.valkey.port) as server:
        yield {"BROKER_URL": server.url, "QM_BROKER": "stock"}


@contextmanager
def rabbitmq(servers: Servers, directory: Path) -> Iterator[dict[str, str]]:
    with RabbitMQ(directory / "rabbitmq") as server:
        yield {"BROKER_URL": server.url}


@pytest.mark.parametrize(
    "broker",
    [
        pytest.param(stock_redis, marks=pytest.mark.smoke),
        without_batches,
        another_redis,
        pytest.param(sentinel, marks=pytest.mark.smoke),
        rabbitmq,
    ],
)
def test_rooms_open_items_are_retried_and_jobs_run_on_every_broker(
    broker: Broker, clean: Servers, tmp_path: Path
) -> None:
    with broker(clean, tmp_path) as of_broker:
        env = {**JOBS, **SYSTEMS, **of_broker}
        migrated = queue_manager("migrate", **env)
        assert migrated.returncode == 0, migrated.stderr
        job_lab().run("now")
        account = collection("second_try").insert_one({"status": "trial", "ends_at": server_now()}).inserted_id
        rooms = [make_room(server_now() + seconds(number % 4 - 1)) for number in range(ROOMS)]

        with worker(tmp_path / "worker", env=env) as the_worker, CeleryProcess(tmp_path / "beat", "beat", env=env):
            eventually(lambda: all(map(is_open, rooms)))
            eventually(lambda: (collection("second_try").find_one({"_id": account}) or {})["status"] == "expired")
            eventually(lambda: len(notes("now")) == 1)
            healthy = eventually(lambda: health(env))

    assert [len(moments) for moments in woken(rooms)] == [1] * ROOMS
    assert collection("second_try_log").count_documents({"account": account}) == 2
    assert "Traceback" not in the_worker.log
    if broker is without_batches:
        assert "A batch of tasks ended" not in the_worker.log
    assert PASSWORD not in healthy + the_worker.log
    assert QUOTED_PASSWORD not in healthy + the_worker.log


@pytest.mark.parametrize("is_batching", ["true", "false"])
def test_messages_are_executed_while_rabbitmq_refuses_new_ones(
    clean: Servers, tmp_path: Path, is_batching: str
) -> None:
    with RabbitMQ(tmp_path / "rabbitmq") as server:
        env = {"QM_CONVERSATIONS": "true", "BROKER_URL": server.url, "QM_BATCHING": is_batching}
        with worker(tmp_path / "worker", env=env):
            rooms = [make_room(server_now()) for _ in range(2)]
            later = [f"unsnooze_room.apply_async(({str(rooms[at])!r},), countdown={at * 15})" for at in range(2)]
            sending = ["from tasks.support_snooze import unsnooze_room", *later]
            subprocess.run([sys.executable, "-c", "\n".join(sending)], env=environment(**env), check=True)
            eventually(lambda: is_open(rooms[0]))
            server.control("set_vm_memory_high_watermark", "absolute", "1MB")
            eventually(lambda: is_open(rooms[1]))  # after several heartbeats, which are not confirmed


def test_rooms_open_after_rabbitmq_was_killed_and_came_back(clean: Servers, tmp_path: Path) -> None:
    with RabbitMQ(tmp_path / "rabbitmq") as server:
        env = {"QM_CONVERSATIONS": "true", "QM_SNOOZE_SCAN_SECONDS": "1", "BROKER_URL": server.url}
        with (
            worker(tmp_path / "worker", env=env) as the_worker,
            CeleryProcess(tmp_path / "beat", "beat", env=env) as beat,
        ):
            first = make_room(server_now())
            eventually(lambda: is_open(first))
            server.kill()
            second = make_room(server_now())
            eventually(lambda: "the broker takes no messages" in beat.log)
            server.start()
            eventually(lambda: is_open(second), within=40)  # no lease had to end
            assert the_worker.is_alive()
            assert "Unexpected error in a scan" not in the_worker.log


def test_rabbitmq_is_checked_counted_and_shown_without_its_password(clean: Servers, tmp_path: Path) -> None:
    with RabbitMQ(tmp_path / "rabbitmq") as server:
        env = {"BROKER_URL": server.url, "QM_CONVERSATIONS": "true", "QM_HOOKS": "true"}
        wrong = {**env, "BROKER_URL": server.url.replace(QUOTED_PASSWORD, "s3cret")}
        said = log_of_refused_start(CeleryProcess(tmp_path / "refused", "worker", env=wrong))
        assert f"The broker at amqp://***@127.0.0.1:{server.port}// refuses the connection" in said

        with web(tmp_path, **env) as process:
            answers = [process.post(SNOOZE), process.get("/metrics"), process.get("/readyz")]
            assert [answer.status for answer in answers] == [202, 200, 200]
            assert 'queue_manager_queue_messages{queue="scans"} 1.0' in answers[1].text
            assert 'queue_manager_queue_messages{queue="support-snooze"} 0.0' in answers[1].text
            assert 'queue_manager_up{server="broker"} 1.0' in answers[1].text
            assert "dead_letters" not in answers[1].text

            shown = [celery("report", **env), *(answer.text for answer in answers)]
            with worker(tmp_path / "worker", "--hostname", "one@h", env=env) as the_worker:
                eventually(lambda: "succeeded in" in the_worker.log)
                shown += [celery("inspect", "conf", "--timeout", "10", "--destination", "one@h", **env)]
            server.kill()
            refused, unready = process.post(SNOOZE), process.get("/readyz")
            shown += [refused.text, process.get("/metrics").text]
            assert (refused.status, "The broker at amqp://***@127.0.0.1" in refused.text) == (503, True)
            assert (unready.status, "The broker does not answer" in unready.text) == (503, True)
            assert 'queue_manager_up{server="broker"} 0.0' in shown[-1]
            shown += [unready.text, process.log]
    for text in shown:
        assert PASSWORD not in text
        assert QUOTED_PASSWORD not in text


def test_health_and_dead_letters_report_features_the_broker_lacks(servers: Servers) -> None:
    for command, said in (
        ("health", "The broker at amqp://***@127.0.0.1:1// is unreachable"),
        ("dead-letters", "the broker at amqp://***@127.0.0.1:1// keeps no dead letters"),
    ):
        run = queue_manager(command, BROKER_URL="amqp://app:s3cret@127.0.0.1:1//")
        assert run.returncode == 1
        assert said in run.stdout + run.stderr
        assert "s3cret" not in run.stdout + run.stderr


def health(env: dict[str, str]) -> str | None:
    """Return what `queue-manager health` says once all is well."""
    run = queue_manager("health", **env)
    return run.stdout if run.returncode == 0 else None
