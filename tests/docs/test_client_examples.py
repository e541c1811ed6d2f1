"""The examples of the Python client, executed against a web process and ended where they would go on without end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.site.markdown import blocks
from models.database import server_now
from models.job import JobState
from queue_manager.client import Client
from queue_manager.core.clock import seconds
from tests.any_jobs import INVOICE
from tests.client.clients import connected, served, url_of
from tests.eventually import eventually
from tests.job_lab import end_job
from tests.real_servers import Servers
from tests.rooms import make_room, make_work, scan
from tests.web.credentials import OPERATOR
from tests.web.queue_client import Queue

PAGE = Path(__file__).parents[2] / "docs/how-to/http-clients.md"
README = PAGE.parents[2] / "clients" / "python" / "README.md"
ROOMS = "support-snooze"
ADA, SECOND = "ada@example.org", "bob@example.org"


class Stopped(BaseException):
    """The example was stopped. No example catches it, because it is not an `Exception`."""


@pytest.fixture
def queue(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return served(clean, tmp_path_factory)


@pytest.fixture
def client(queue: Queue) -> Iterator[Client]:
    with connected("sync", url_of(queue.web.port)) as client:
        yield client


def run(part: str, queue: Queue, shown_by: Callable[..., None], *, page: Path = PAGE) -> None:
    """Execute the one example that contains `part`, with this function as its `print`."""
    (code,) = [block.code for block in blocks(page.read_text()) if block.language == "python" and part in block.code]
    for shown, actual in (
        ("http://127.0.0.1:6002", url_of(queue.web.port)),
        ("YOUR_API_KEY", OPERATOR),
        ("send_invoice", INVOICE),
    ):
        assert shown in code or shown == "send_invoice"
        code = code.replace(shown, actual)
    exec(compile(code, str(PAGE), "exec"), {"print": shown_by})


@pytest.mark.parametrize("part", ['    for message in client.messages.receive(type="send_mail"):', "AsyncClient"])
def test_a_consumer_acknowledges_what_it_receives(part: str, queue: Queue, client: Client) -> None:
    printed: list[Any] = []

    def stop_at_the_second(to: str) -> None:
        if printed:
            raise Stopped
        printed.append(to)
        client.messages.enqueue("send_mail", {"to": SECOND}, max_attempts=1)

    with pytest.raises(Stopped):
        run(part, queue, stop_at_the_second)

    assert printed == [ADA]
    (done,) = client.messages.list("acknowledged")
    (dead,) = client.messages.list("dead")
    assert (done.payload, dead.payload, dead.last_error) == ({"to": ADA}, {"to": SECOND}, "Stopped: ")


def test_the_readme_sends_and_receives(queue: Queue, client: Client) -> None:
    printed: list[Any] = []

    def stop_at_the_second(payload: Any) -> None:
        if printed:
            raise Stopped
        printed.append(payload)
        client.messages.enqueue("send_mail", {"to": SECOND}, max_attempts=1)

    with pytest.raises(Stopped):
        run("", queue, stop_at_the_second, page=README)

    assert printed == [{"to": ADA}]
    assert [one.payload for one in client.messages.list("acknowledged")] == printed


def test_a_worker_continues_after_an_error(queue: Queue, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    ids = [client.messages.enqueue("send_mail", {"to": to}, max_attempts=1) for to in (ADA, SECOND, "stop")]

    def fail_at_the_first(to: str) -> None:
        if to == "stop":
            raise Stopped
        if to == ADA:
            raise ValueError("no such address")

    with pytest.raises(Stopped):
        run("logging", queue, fail_at_the_first)

    assert f"The message {ids[0]} failed" in caplog.text
    assert [client.messages.get(id).state for id in ids] == ["dead", "acknowledged", "dead"]
    assert client.messages.get(ids[0]).last_error == "ValueError: no such address"


def test_jobs_and_items_are_retried(queue: Queue, client: Client) -> None:
    failed = client.jobs.run(INVOICE, 41).id
    end_job(failed, JobState.FAILURE)
    make_failed_room()
    printed: list[tuple[Any, ...]] = []
    worker = threading.Thread(target=succeed, args=[client, 42])
    worker.start()

    run("client.jobs.run", queue, lambda *values: printed.append(values))

    worker.join()
    assert printed[0] == ("success",)
    assert ROOMS in {name for name, _due, _problems in printed[1:]}
    assert client.jobs.get(failed).state == "pending"
    assert list(client.systems.items(ROOMS, state="failed")) == []


def make_failed_room() -> None:
    make_room(server_now() - seconds(300))
    work = make_work(server_now)
    (item,) = scan(work)
    work.give_up(item, error="Boom")


def succeed(client: Client, argument: int) -> None:
    """Do what a worker does with the job that has this argument."""
    (job,) = eventually(lambda: [job for job in client.jobs.list() if job.arguments == [argument]])
    end_job(job.id, JobState.SUCCESS)


def test_events_are_followed(queue: Queue, client: Client) -> None:
    printed: list[Any] = []
    is_over = threading.Event()

    def add_jobs() -> None:
        while not is_over.wait(0.1):
            client.jobs.run(INVOICE, 42)

    def stop_after_the_first(id: str, name: str, job: Any) -> None:
        if job and job["arguments"] == [42]:  # not one of an earlier test
            printed.append((id, name, job))
            raise Stopped

    worker = threading.Thread(target=add_jobs)
    worker.start()
    try:
        with pytest.raises(Stopped):
            run("client.jobs.events", queue, stop_after_the_first)
    finally:
        is_over.set()
        worker.join()
    ((id, name, job),) = printed
    assert id
    assert name == "job-update"
    assert client.jobs.get(job["_id"]).arguments == [42]
