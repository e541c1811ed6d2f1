"""Items that wait in a worker are executed as one batch, with the outcomes of single items: real processes."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery.events.receiver import EventReceiver
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from queue_manager.batching import strategy
from tasks import app
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.eventually import eventually
from tests.real_servers import Servers

pytestmark = pytest.mark.crash

QUEUE, TASK = "batches", "tests.tasks.batch_app.touch"
ROOT = Path(__file__).parents[2]


class Watched:
    """A worker with one process, the items that it is given, and what becomes of them."""

    def __init__(self, process: CeleryProcess, client: redis.Redis) -> None:
        self.process, self.client = process, client
        self.events: dict[str, list[str]] = defaultdict(list)
        self.results: dict[str, str] = {}

    def send(self, *names: str, **options: Any) -> None:
        for name in names:
            app.send_task(TASK, [name], task_id=options.pop("task_id", name), queue=QUEUE, **options)

    def send_together(self, *names: str, **options: Any) -> None:
        """Send items that wait until the last of them is in the worker."""
        with self.held():
            self.send(*names, **options)
            eventually(lambda: self.client.hlen("qm:unacked") == 1 + len(names))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the process busy within, with an item by itself."""
        self.client.delete("go", "calls")
        self.send("hold")
        eventually(lambda: ["one", ["hold", "1"]] in self.calls())
        yield
        self.client.set("go", 1)

    def calls(self) -> list[Any]:
        return [json.loads(call) for call in self.client.lrange("calls", 0, -1)]

    def batches(self) -> list[list[str]]:
        return [names for kind, names in self.calls() if kind == "many"]

    def is_idle(self) -> bool:
        return self.client.llen(QUEUE) + self.client.hlen("qm:unacked") == 0

    def wait_until_done(self) -> None:
        """Wait until nothing waits and everything is acknowledged."""
        eventually(self.is_idle)

    def listen(self) -> None:
        def note(event: dict[str, Any]) -> None:
            if event["type"] == "task-ping":
                self._hears = True
            elif "uuid" in event:
                self.events[event["uuid"]].append(event["type"].removeprefix("task-"))
                self.results[event["uuid"]] = event.get("result", "")

        def receive() -> None:
            with app.connection_for_read() as connection:
                self._receiver = EventReceiver(connection, handlers={"*": note}, app=app)
                # Without a timeout: after one it would subscribe anew, and miss what was sent in between.
                self._receiver.capture(limit=None, timeout=None, wakeup=False)

        self._hears = False
        self._thread = Thread(target=receive, daemon=True)
        self._thread.start()
        with app.events.default_dispatcher() as dispatcher:
            eventually(lambda: dispatcher.send("task-ping") or self._hears)

    def stop_listening(self) -> None:
        self._receiver.should_stop = True
        self._thread.join(10)


@pytest.fixture
def start(clean: Servers, tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    processes: list[CeleryProcess] = []

    def start_one(*arguments: str, pool: str = "prefork", **env: str) -> Watched:
        options = ("--queues", QUEUE, "--concurrency", "1", "--pool", pool)
        process = worker(
            tmp_path / f"worker{len(processes)}.log",
            *(*options, "--task-events", *arguments),
            app="tests.tasks.batch_app",
            env={"PYTHONPATH": str(ROOT), **env},
        ).start()
        processes.append(process)
        return Watched(process, client)

    with redis.Redis.from_url(clean.valkey.url, decode_responses=True) as client:
        yield start_one
        for process in processes:
            process.kill()


@pytest.fixture
def watched(start: Callable[..., Watched]) -> Iterator[Watched]:
    one = start()
    one.listen()
    yield one
    one.stop_listening()


@pytest.mark.smoke
def test_failing_item_does_not_affect_its_batch_and_each_item_has_its_own_attempts_and_events(watched: Watched) -> None:
    names = ["ok-1", "poison-1", "ok-2", "permanent-1", "early-1", "ok-3"]

    watched.send_together(*names)
    eventually(lambda: watched.events["poison-1"][-1:] == ["failed"])
    watched.wait_until_done()

    first, *again = watched.batches()
    assert first == names
    assert [set(batch) for batch in again] in ([], [{"poison-1", "early-1"}])  # they may come again at the same moment
    tried = [names for kind, names in watched.calls() if kind == "one"]
    assert Counter(map(tuple, tried)) == Counter(
        [("hold", "1"), ("poison-1", "1"), ("poison-1", "2"), ("permanent-1", "1"), ("early-1", "1"), ("early-1", "1")]
    )
    eventually(lambda: len(watched.events["early-1"]) == 5)
    succeeded = ["received", "started", "succeeded"]
    # A worker may receive what was sent again before it hears how its batch ended.
    assert {name: sorted(events) for name, events in watched.events.items() if name != "hold"} == {
        **dict.fromkeys(("ok-1", "ok-2", "ok-3"), succeeded),
        "poison-1": ["failed", "received", "received", "retried", "started", "started"],
        "permanent-1": ["failed", "received", "started"],
        "early-1": ["received", "received", "started", "started", "succeeded"],
    }
    assert watched.results["ok-2"] == "'ok-2 with 6'"
    given_up = [names for kind, names in watched.calls() if kind == "give up"]
    assert sorted(given_up) == [["permanent-1", "this is none"], ["poison-1", "Poison('it never works')"]]


def test_a_batch_logs_one_line_and_one_for_each_failed_item(watched: Watched) -> None:
    watched.send_together("ok-1", "permanent-1", "ok-2")
    watched.wait_until_done()
    eventually(lambda: "A batch of tasks ended" in watched.process.log)
    assert "tasks=3" in watched.process.log
    assert watched.process.log.count("succeeded in") == 1  # of the item that held the others up, alone
    assert watched.process.log.count("The final attempt of an item failed: this is none") == 1


def test_callback_of_a_batched_item_is_sent(watched: Watched) -> None:
    with watched.held():
        watched.send("ok-1")
        after = app.signature(TASK, args=["ok-after"], immutable=True, queue=QUEUE)
        watched.send("ok-2", link=after)
        eventually(lambda: watched.client.hlen("qm:unacked") == 3)
    watched.wait_until_done()
    eventually(lambda: ["one", ["ok-after", "1"]] in watched.calls())
    assert watched.batches() == [["ok-1", "ok-2"]]


@pytest.mark.parametrize(
    "body",
    [
        [None, {}, None],
        [5, {}, None],
        [["x"], None, None],
        [["x"], ["y"], None],
        [["half a pair: \ud800"], {}, None],
    ],
)
def test_malformed_message_fails_alone(watched: Watched, body: list[Any]) -> None:
    app.send_task(TASK, ["ok-3"], task_id="malformed", queue="elsewhere")
    sent: Any = watched.client.lpop("elsewhere")
    message = json.loads(sent)
    message["body"] = json.dumps(body)
    with watched.held():
        watched.send("ok-1")
        watched.client.lpush(QUEUE, json.dumps(message))
        watched.send("ok-2")
        eventually(lambda: watched.client.hlen("qm:unacked") == 4)
    watched.wait_until_done()
    eventually(lambda: watched.events["malformed"][2:] in (["failed"], ["succeeded"]))  # as Celery has it
    for name in ("ok-1", "ok-2"):
        eventually(lambda name=name: watched.events[name] == ["received", "started", "succeeded"])


def test_task_signals_are_sent_for_each_item_of_a_batch(start: Callable[..., Watched]) -> None:
    watched = start(BATCH_APP_SIGNALS="1")
    watched.send_together("ok-1", "ok-2")
    watched.wait_until_done()
    assert watched.batches() == [["ok-1", "ok-2"]]
    assert [names[0] for kind, names in watched.calls() if kind == "success signal"] == ["hold", "ok-1", "ok-2"]


def test_single_item_is_executed_as_an_ordinary_task(watched: Watched) -> None:
    watched.send("ok-1")
    watched.wait_until_done()
    assert watched.calls() == [["one", ["ok-1", "1"]]]


@pytest.mark.parametrize("failure", ["whole", "short"])
def test_items_of_a_batch_that_fails_as_a_whole_are_executed_one_by_one(watched: Watched, failure: str) -> None:
    watched.send_together(f"{failure}-1", "ok-1", "ok-2")
    watched.wait_until_done()
    assert len(watched.batches()) == 1
    assert [names[0] for kind, names in watched.calls() if kind == "one"][1:] == [f"{failure}-1", "ok-1", "ok-2"]


def test_items_of_a_batch_that_fails_outside_their_function_are_executed_alone(watched: Watched) -> None:
    watched.send_together("unrecorded-1", "ok-1")
    watched.wait_until_done()
    assert watched.batches() == [["unrecorded-1", "ok-1"]]
    assert [names[0] for kind, names in watched.calls() if kind == "one"][1:] == ["unrecorded-1", "ok-1"]
    for name in ("unrecorded-1", "ok-1"):
        eventually(lambda name=name: watched.events[name][-1:] == ["succeeded"])


def test_batch_that_arrives_a_moment_early_is_repeated_as_one_batch(watched: Watched) -> None:
    watched.send_together("moment-1", "ok-1", "ok-2")
    watched.wait_until_done()
    assert watched.batches() == [["moment-1", "ok-1", "ok-2"]] * 2


def test_items_that_a_batch_did_not_reach_are_executed_by_the_next_one(watched: Watched) -> None:
    names = ["unreached-1", "ok-1", "ok-2", "unreached-2"]
    watched.send_together(*names)
    watched.wait_until_done()
    assert watched.batches() == [names, ["unreached-1", "unreached-2"]]
    assert [names[0] for kind, names in watched.calls() if kind == "one"] == ["hold"]
    eventually(lambda: watched.results.get("unreached-2") == "'unreached-2 with 2'")


def test_during_a_mongodb_outage_attempts_are_repeated_and_only_the_first_item_waits(watched: Watched) -> None:
    names = [f"flaky-{number}" for number in range(20)]
    watched.send_together(*names)
    eventually(lambda: len(watched.batches()) >= 3)  # more often than there are attempts
    assert watched.batches()[0] == names
    asked = [(name, repeats) for kind, (name, *repeats) in watched.calls() if kind == "outage"]
    assert not [name for name, repeats in asked if repeats == ["0"]]  # none of them after the batch had
    watched.client.set("healthy", 1)
    watched.wait_until_done()
    for name in names:
        eventually(lambda name=name: watched.events[name][-1:] == ["succeeded"])
        assert "failed" not in watched.events[name]


@pytest.fixture
def may_publish(clean: Servers) -> Iterator[Callable[[bool], None]]:
    """Have the server refuse new messages, and do everything else."""
    with redis.Redis.from_url(clean.valkey.url) as client:

        def allow(is_allowed: bool) -> None:
            client.execute_command("ACL", "SETUSER", "default", "+lpush" if is_allowed else "-lpush")

        yield allow
        allow(True)


@pytest.mark.parametrize("names", [["flaky-1"], ["late-1"], ["flaky-1", "flaky-2", "flaky-3"]])
def test_item_whose_retry_cannot_be_published_is_redelivered_as_the_same_attempt(
    names: list[str], watched: Watched, may_publish: Callable[[bool], None]
) -> None:
    with watched.held():
        watched.send(*names)
        eventually(lambda: watched.client.hlen("qm:unacked") == 1 + len(names))
        may_publish(False)
    eventually(lambda: all("rejected" in watched.events[name] for name in names))
    lines = ("The next attempt could not be published", "Couldn't reject")
    for line in lines:
        eventually(lambda line=line: line in watched.process.log)
    watched.client.set("healthy", 1)
    may_publish(True)

    eventually(lambda: all("succeeded" in watched.events[name] for name in names))
    watched.wait_until_done()
    assert [watched.process.log.count(line) for line in lines] == [1, 1]  # once for the whole outage
    assert watched.client.llen("qm:dead-letters") == 0
    assert not [event for name in names for event in watched.events[name] if event in ("retried", "failed")]
    assert {names[1] for kind, names in watched.calls() if kind == "one"} == {"1"}
    assert watched.batches()[:1] == ([names] if len(names) > 1 else [])


def test_item_delivered_twice_is_executed_once_and_acknowledged_twice(watched: Watched) -> None:
    watched.send_together("ok-1", "ok-1", "ok-2")
    watched.wait_until_done()
    assert watched.batches() == [["ok-1", "ok-1", "ok-2"]]
    eventually(lambda: watched.events["ok-1"].count("succeeded") == 2)
    assert [names for kind, names in watched.calls() if kind == "one"] == [["hold", "1"]]


@pytest.mark.smoke
def test_after_its_process_is_killed_each_item_of_a_batch_is_executed_alone_and_batching_continues(
    watched: Watched,
) -> None:
    names = ["ok-1", "die-1", "ok-2"]
    watched.send_together(*names)
    watched.wait_until_done()
    assert watched.batches() == [names]
    assert [names[0] for kind, names in watched.calls() if kind == "one"] == ["hold", *names]
    eventually(lambda: all(watched.events[name][-1:] == ["succeeded"] for name in names))

    watched.send_together("ok-3", "ok-4")

    watched.wait_until_done()
    assert watched.batches()[-1] == ["ok-3", "ok-4"]


def test_item_that_runs_out_of_memory_fails_and_its_worker_survives(watched: Watched) -> None:
    watched.send_together("ok-1", "memory-1", "ok-2")
    eventually(lambda: watched.events["memory-1"][-1:] == ["failed"])
    assert ["give up", ["memory-1", "not enough memory"]] in watched.calls()
    watched.send("ok-3")
    eventually(lambda: watched.events["ok-3"][-1:] == ["succeeded"])


def test_revoked_item_is_removed_from_its_batch(watched: Watched) -> None:
    with watched.held():
        watched.send("ok-1", "ok-2", "ok-3")
        eventually(lambda: watched.client.hlen("qm:unacked") == 4)
        app.control.revoke("ok-2", reply=True, timeout=5)
    watched.wait_until_done()
    assert watched.batches() == [["ok-1", "ok-3"]]
    eventually(lambda: watched.events["ok-2"] == ["received", "revoked"])


def test_terminating_an_item_does_not_revoke_the_others_of_its_batch(watched: Watched) -> None:
    watched.send_together("ok-1", "slow-1", "ok-2")
    eventually(lambda: watched.events["ok-2"][-1:] == ["started"])
    eventually(lambda: watched.client.exists("seen:slow"))  # a process accepts its tasks before it runs them

    app.control.revoke("slow-1", terminate=True, signal="SIGKILL")

    watched.wait_until_done()
    assert watched.batches() == [["ok-1", "slow-1", "ok-2"]]
    assert [names[0] for kind, names in watched.calls() if kind == "one"] == ["hold", "ok-1", "ok-2"]
    eventually(lambda: watched.events["ok-2"][-1] == "succeeded")
    assert watched.events["slow-1"] == ["received", "started", "revoked"]


def test_warm_shutdown_requeues_the_items_that_wait(watched: Watched) -> None:
    names = [f"ok-{number}" for number in range(300)]
    with watched.held():
        watched.send(*names)
        eventually(lambda: watched.client.hlen("qm:unacked") == 301)
        watched.process.signal(signal.SIGTERM)
        eventually(lambda: "Warm shutdown" in watched.process.log)
    eventually(lambda: not watched.process.is_alive())
    assert watched.batches() == []
    assert (watched.client.llen(QUEUE), watched.client.hlen("qm:unacked")) == (300, 0)


def test_items_that_wait_survive_a_lost_broker_connection(watched: Watched) -> None:
    names = [f"ok-{number}" for number in range(300)]
    with watched.held():
        watched.send(*names)
        eventually(lambda: watched.client.hlen("qm:unacked") == 301)
        watched.client.client_kill_filter(_type="normal", skipme=True)
        eventually(lambda: "Connection to broker lost" in watched.process.log)
    watched.wait_until_done()
    assert {name for names in watched.batches() for name in names} == {*names, "hold"}
    watched.send_together("ok-a", "ok-b")
    watched.wait_until_done()
    assert watched.batches() == [["ok-a", "ok-b"]]


def test_items_beyond_the_batch_size_form_further_batches(watched: Watched) -> None:
    names = [f"ok-{number}" for number in range(1_400)]
    watched.send_together(*names)
    watched.wait_until_done()
    assert list(map(len, watched.batches())) == [1_000, 400]


def test_a_worker_reserves_many_items_of_batches_and_few_other_tasks(start: Callable[..., Watched]) -> None:
    watched = start("--queues", f"{QUEUE},singles")
    names = [f"ok-{number}" for number in range(50)]
    with watched.held():
        for _ in range(9):
            app.send_task("celery.backend_cleanup", queue="singles")
        watched.send(*names)
        eventually(lambda: watched.client.hlen("qm:unacked") == 1 + len(names) + 4)
        assert watched.client.llen("singles") == 5
    watched.wait_until_done()
    assert watched.batches() == [names]
    eventually(lambda: not watched.client.exists("singles"))


def test_items_with_a_time_limit_are_executed_one_by_one(watched: Watched) -> None:
    watched.send_together("ok-1", "ok-2", soft_time_limit=60)
    watched.wait_until_done()
    assert watched.batches() == []


@pytest.mark.parametrize(("pool", "env"), [("solo", {}), ("threads", {}), ("prefork", {"BATCH_APP_TIME_LIMIT": "60"})])
def test_pools_without_batch_support_execute_each_item_as_an_ordinary_task(
    start: Callable[..., Watched], pool: str, env: dict[str, str]
) -> None:
    watched = start(pool=pool, **env)
    watched.send("ok-1", "ok-2", "ok-3", "ok-4")
    watched.wait_until_done()
    assert [names[0] for kind, names in watched.calls() if kind == "one"] == ["ok-1", "ok-2", "ok-3", "ok-4"]
    assert watched.batches() == []


class Pool:
    """Takes the place of a worker's pool and event loop, with Celery's own semaphore between them."""

    active = True

    def __init__(self, processes: int) -> None:
        self.free, self.num_processes = LaxBoundedSemaphore(processes), processes
        self.running: list[dict[str, Any]] = []
        self.soon: list[Callable[[], None]] = []
        self.started: list[str] = []
        controller = SimpleNamespace(
            _quick_acquire=self.free.acquire, _quick_release=self.free.release, _process_task=self._process_alone
        )
        hub = SimpleNamespace(call_soon=self.soon.append)
        consumer = SimpleNamespace(controller=controller, hub=hub, pool=self)
        task = SimpleNamespace(name=TASK, batch_timeout=None, send_events=False, time_limit=None, soft_time_limit=None)
        self.grouping = strategy._BatchingConsumer(task, consumer)

    def apply_async(self, target: Any, args: Any, **job: Any) -> None:
        self.started += [id for id, *_ in args[1]]
        self.running.append(job)

    def _process_alone(self, request: Any) -> None:
        self.started.append(request.id)
        self.running.append({})

    def turn(self) -> None:
        soon, self.soon[:] = list(self.soon), []
        for act in soon:
            act()

    def end_one(self) -> None:
        self.running.pop(0)
        self.free.release()


def request(number: int, *, is_revoked: bool) -> Any:
    id = str(number)
    return SimpleNamespace(id=id, time_limits=[None, None], revoked=lambda: is_revoked, request_dict={}, _payload=None)


@pytest.mark.parametrize("seed", range(5))
def test_process_slots_balance_in_any_order_of_events(seed: int) -> None:
    chance = random.Random(seed)
    pool = Pool(processes := chance.choice([1, 2, 3]))
    meant = []
    for number in range(5_000):  # one at a time, which asks for a process again and again
        is_revoked = chance.random() < 0.3
        meant += [] if is_revoked else [str(number)]
        pool.grouping.on_task_request(request(number, is_revoked=is_revoked))
        if chance.random() < 0.9:
            pool.turn()
        if pool.running and chance.random() < 0.002:
            pool.end_one()
    pool.turn()
    while pool.running:
        pool.end_one()
        pool.turn()
    assert pool.started == meant
    assert pool.free.value == processes
    assert not pool.free._waiting


def limit_rate(rate: str | int) -> Any:
    """Set the rate limit of the task, by a connection of its own: earlier tests cut those of the pool."""
    with app.connection_for_write() as connection:
        return app.control.rate_limit(TASK, rate, reply=True, timeout=3, connection=connection)


def test_rate_limited_items_are_not_batched(watched: Watched) -> None:
    assert limit_rate("1/m")

    watched.send("ok-1", "ok-2", "ok-3")
    eventually(lambda: watched.events["ok-1"][-1:] == ["succeeded"])
    eventually(lambda: watched.client.hlen("qm:unacked") == 2)

    with app.connection_for_write() as connection:
        reserved = app.control.inspect(timeout=3, connection=connection).reserved() or {}
    assert sorted(request["id"] for requests in reserved.values() for request in requests) == ["ok-2", "ok-3"]
    assert watched.calls() == [["one", ["ok-1", "1"]]]

    assert limit_rate(0)
    watched.send("hold")
    eventually(lambda: ["one", ["hold", "1"]] in watched.calls())
    watched.send("ok-4", "ok-5")
    eventually(lambda: watched.client.hlen("qm:unacked") == 5)
    watched.client.set("go", 1)
    eventually(lambda: watched.batches() == [["ok-4", "ok-5"]])
