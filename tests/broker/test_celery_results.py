"""Celery's canvases, retries, revoked tasks and results, with a worker on the batched transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group, states
from celery.canvas import Signature, StampingVisitor
from celery.exceptions import SoftTimeLimitExceeded, TaskRevokedError, TimeLimitExceeded, WorkerLostError

from dev.servers import Valkey
from tests.broker.celery_process import CeleryProcess, lines
from tests.broker.results_app import call, results_app
from tests.eventually import eventually

pytestmark = pytest.mark.processes

TIMEOUT = 30  # seconds


@pytest.fixture(scope="module")
def app(server_of_module: Valkey) -> Iterator[Celery]:
    with results_app(server_of_module.url) as app:
        yield app


@pytest.fixture(scope="module")
def worker(server_of_module: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CeleryProcess]:
    log = tmp_path_factory.mktemp("worker") / "one.log"
    options = ("--queues=q,other", "--hostname=one@test", "--concurrency=2", "--loglevel=info")
    with CeleryProcess(
        "worker", *options, log=log, broker_url=server_of_module.url, app="tests.broker.results_app"
    ) as worker:
        yield worker.says(" ready.")


def numbers(app: Celery, *pairs: tuple[int, int]) -> Signature:
    return group([call(app, "add", *pair, immutable=True) for pair in pairs], app=app)


CANVASES: dict[str, tuple[Callable[[Celery], Signature], Any]] = {
    "groups in a group": (lambda app: group(numbers(app, (1, 1), (2, 2)), numbers(app, (3, 3)), app=app), [2, 4, 6]),
    "chain": (lambda app: chain(call(app, "add", 1, 1), call(app, "add", 2), call(app, "add", 3)), 7),
    "chord": (lambda app: chord(numbers(app, (1, 1), (2, 2)), call(app, "total"), app=app), 6),
    "chord in a chain": (
        lambda app: chain(
            call(app, "add", 1, 1),
            group(call(app, "add", 2), call(app, "add", 3), app=app),
            call(app, "total"),
            call(app, "add", 1),
        ),
        10,
    ),
    "two groups in a chain": (
        lambda app: chain(
            numbers(app, (1, 1), (2, 2)), group(call(app, "total"), call(app, "total"), app=app), call(app, "total")
        ),
        12,
    ),
    "empty group in a chain": (lambda app: chain(call(app, "add", 2, 2), group(app=app), call(app, "add", 2)), 6),
}


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("canvas", CANVASES)
def test_canvas_returns_its_result(canvas: str, app: Celery) -> None:
    make, expected = CANVASES[canvas]

    assert make(app).apply_async().get(timeout=TIMEOUT) == expected


@pytest.mark.usefixtures("worker")
def test_steps_of_a_chain_of_groups_run_once_and_in_order(app: Celery, tmp_path: Path) -> None:
    diary = tmp_path / "diary"

    def step(name: str) -> Signature:
        return call(app, "write", name, str(diary), immutable=True)

    stages = [[group(step(f"{n}a"), step(f"{n}b"), app=app), step(f"{n}c")] for n in range(3)]
    chain(*(one for stage in stages for one in stage)).apply_async().get(timeout=TIMEOUT)

    written = lines(diary)
    assert [sorted(written[n : n + 3]) for n in (0, 3, 6)] == [[f"{n}a", f"{n}b", f"{n}c"] for n in range(3)]
    assert written[2::3] == ["0c", "1c", "2c"]


@pytest.mark.usefixtures("worker")
def test_a_long_chain_of_groups_runs(app: Celery, tmp_path: Path) -> None:
    """Each group adds two levels of nesting to the message of the first one."""
    diary = tmp_path / "diary"

    def step(name: str) -> Signature:
        return call(app, "write", name, str(diary), immutable=True)

    names = [(f"{n:02}a", f"{n:02}b") for n in range(60)]
    chain(*(group(map(step, pair), app=app) for pair in names)).apply_async().get(timeout=TIMEOUT)

    # A set, because Celery executes the third group twice, with any transport.
    assert {*lines(diary)} == {name for pair in names for name in pair}


BODIES: dict[str, Callable[[Celery], Signature]] = {
    "task": lambda app: call(app, "total"),
    "chain": lambda app: chain(call(app, "total"), call(app, "add", 1)),
    "group": lambda app: numbers(app, (1, 1), (2, 2)),
    "chord": lambda app: chord(numbers(app, (1, 1)), call(app, "total"), app=app),
}


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("body", BODIES)
def test_failed_member_fails_the_chord(body: str, app: Celery) -> None:
    header = [call(app, "add", 1, 1), call(app, "fail")]

    with pytest.raises(ValueError, match="expected"):
        chord(header, BODIES[body](app), app=app).apply_async().get(timeout=TIMEOUT)


def test_failed_task_ends_its_chain_and_calls_its_errback(app: Celery, worker: CeleryProcess, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    failing = chain(call(app, "fail"), call(app, "write", "next", str(diary), immutable=True))
    failing.link_error(call(app, "write", "failed", str(diary), immutable=True))

    with pytest.raises(ValueError, match="expected"):
        failing.apply_async().get(timeout=TIMEOUT)

    eventually(lambda: lines(diary) == ["failed"])


@pytest.mark.usefixtures("worker")
def test_task_is_replaced_by_one_on_another_queue(app: Celery) -> None:
    replaced = chain(call(app, "replace_with", 40, "other"), call(app, "add", 1, queue="other"))

    assert replaced.apply_async().get(timeout=TIMEOUT) == 42


@pytest.mark.usefixtures("worker")
def test_task_is_retried(app: Celery) -> None:
    assert call(app, "try_again", 2).apply_async(countdown=0.2).get(timeout=TIMEOUT) == 2


@pytest.mark.usefixtures("worker")
def test_rejected_task_is_redelivered_and_its_chain_continues(app: Celery, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    rejected = chain(call(app, "reject_first"), call(app, "write", str(diary)))

    rejected.apply_async().get(timeout=TIMEOUT)

    assert lines(diary) == ["redelivered"]


@pytest.mark.usefixtures("worker")
def test_time_limits_end_tasks(app: Celery, tmp_path: Path) -> None:
    held = call(app, "hold", 20, str(tmp_path / "diary"))

    with pytest.raises(SoftTimeLimitExceeded):
        held.apply_async(soft_time_limit=1).get(timeout=TIMEOUT)
    with pytest.raises(TimeLimitExceeded):
        held.apply_async(time_limit=1).get(timeout=TIMEOUT)
    assert call(app, "add", 1, 1).apply_async().get(timeout=TIMEOUT) == 2


@pytest.mark.parametrize(("by", "shown"), [("kill", "signal 9 (SIGKILL)"), ("exit", "exitcode 1")])
def test_process_that_dies_fails_its_task_and_is_replaced(
    by: str, shown: str, app: Celery, worker: CeleryProcess
) -> None:
    with pytest.raises(WorkerLostError):
        call(app, "die", by).apply_async().get(timeout=TIMEOUT)

    worker.says(f"Worker exited prematurely: {shown}")
    assert numbers(app, *[(n, n) for n in range(4)]).apply_async().get(timeout=TIMEOUT) == [0, 2, 4, 6]


def test_many_threads_publish(app: Celery, worker: CeleryProcess) -> None:
    with ThreadPoolExecutor(42) as threads:
        sent = list(threads.map(lambda n: call(app, "add", n, 0).apply_async(), range(42)))

    assert [result.get(timeout=TIMEOUT) for result in sent] == [*range(42)]


class Stamps(StampingVisitor):
    def __init__(self, wanted_by: str) -> None:
        self._wanted_by = wanted_by

    def on_signature(self, sig: Signature, **_: Any) -> dict[str, Any]:
        return {"wanted_by": self._wanted_by}

    def on_callback(self, callback: Signature, **_: Any) -> dict[str, Any]:
        return {"follows": "stamps"}


@pytest.mark.usefixtures("worker")
def test_stamps_reach_the_task_and_its_callback(app: Celery) -> None:
    first, second = call(app, "stamps"), call(app, "stamps")
    follows = second.freeze()
    first.link(second)
    first.stamp(visitor=Stamps("billing"))

    assert first.apply_async().get(timeout=TIMEOUT) == {"wanted_by": "billing"}
    assert follows.get(timeout=TIMEOUT) == {"wanted_by": "billing", "follows": "stamps"}


@pytest.mark.usefixtures("worker")
def test_running_task_is_not_revoked_unless_it_is_terminated(app: Celery, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    goes_on, ends = (call(app, "wait_for", str(mark)).apply_async() for _ in range(2))
    eventually(lambda: goes_on.state == ends.state == states.STARTED)

    goes_on.revoke()
    ends.revoke(terminate=True)
    eventually(lambda: ends.state == states.REVOKED)
    mark.touch()

    assert goes_on.get(timeout=TIMEOUT) == "completed"
    with pytest.raises(TaskRevokedError):
        ends.get(timeout=TIMEOUT)


def test_task_with_a_countdown_is_listed_as_scheduled_and_can_be_revoked(app: Celery, worker: CeleryProcess) -> None:
    waits = call(app, "add", 1, 1).apply_async(countdown=60)

    def queried() -> Any:
        replies = app.control.inspect(["one@test"], timeout=5).query_task(waits.id) or {}
        return [state for tasks in replies.values() for state, _ in tasks.values()]

    eventually(lambda: queried() == ["scheduled"])
    waits.revoke()
    with pytest.raises(TaskRevokedError):
        waits.get(timeout=TIMEOUT)


@pytest.mark.usefixtures("worker")
def test_tasks_are_revoked_by_their_stamps(app: Celery, tmp_path: Path) -> None:
    runs, comes = call(app, "hold", 60, str(tmp_path / "diary")), call(app, "add", 1, 1)
    for signature in (runs, comes):
        signature.stamp(visitor=Stamps("nobody"))
    running = runs.apply_async()
    eventually(lambda: running.state == states.STARTED)

    running.revoke_by_stamped_headers({"wanted_by": ["nobody"]}, terminate=True)

    with pytest.raises(TaskRevokedError):
        running.get(timeout=TIMEOUT)
    with pytest.raises(TaskRevokedError):
        comes.apply_async().get(timeout=TIMEOUT)


def test_revoked_member_fails_its_chord(app: Celery, worker: CeleryProcess, tmp_path: Path) -> None:
    held = [call(app, "hold", 8, str(tmp_path / "diary"), immutable=True) for _ in range(2)]
    result = chord([*held, call(app, "add", 1, 1)], call(app, "total"), app=app).apply_async()
    member = result.parent.results[2]

    def reserved() -> list[str]:
        replies = app.control.inspect(["one@test"], timeout=5).reserved() or {}
        return [task["id"] for tasks in replies.values() for task in tasks]

    eventually(lambda: reserved() == [member.id])
    app.control.revoke(member.id, destination=["one@test"], reply=True, timeout=5)

    with pytest.raises(Exception, match="revoked"):
        result.get(timeout=TIMEOUT)
    assert member.state == states.REVOKED
