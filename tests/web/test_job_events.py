"""The event stream of jobs: every change once, in order, across reconnects and outages."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from dev.ports import free_port
from dev.servers import Mongo
from models import database, job_attempt, job_operations
from models import job as model
from models.job import JobState
from models.job_attempt import JobOutcome
from models.job_changes import WAIT_MS
from queue_manager.core.clock import parse_utc, seconds
from tests.any_jobs import INVOICE, MODULE
from tests.e2e.replica_set import replica_set
from tests.eventually import eventually
from tests.job_lab import start_job
from tests.pace import promptly
from tests.real_servers import Servers
from tests.web.queue_client import Stream
from tests.web.web_process import Web, forked_web, shared_web

ON = {"QM_JOBS": "true", "JOBS_IMPORTS": json.dumps([MODULE])}
PATH = "/api/jobs/events"


@pytest.fixture
def process(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    return shared_web(tmp_path_factory, **ON)


def run(process: Web, *arguments: Any, **headers: str) -> str:
    """Store a job and return its id."""
    answer = process.post("/api/jobs", {"name": INVOICE, "arguments": list(arguments)}, **headers)
    assert answer.status == 201, answer.text
    return str(answer.body["job"]["_id"])


def act(process: Web, id: str, what: str) -> None:
    assert process.post(f"/api/jobs/{id}/{what}").status == 200


@contextmanager
def listening(process: Web, last: str | None = None, **options: str) -> Iterator[Stream]:
    with Stream(process, PATH, last=last, **options) as stream:
        assert stream.status == 200
        next(stream.blocks())  # from here on it misses nothing
        yield stream


def job_updates(stream: Stream, *ids: str) -> Iterator[Any]:
    """Yield the updates of these jobs; deletions from before the test may still arrive."""
    for name, data in stream.events():
        assert name == "job-update"
        if data["id"] in ids:
            yield data


def until(stream: Stream, last: str) -> list[str]:
    """Return the ids in the updates up to the first about `last`."""
    seen = []
    for _, data in stream.events():
        seen.append(data["id"])
        if data["id"] == last:
            return seen
    raise AssertionError(f"the stream ended after {seen}")


def heard(process: Web) -> str:
    """Return the id of the last event of all."""
    with listening(process) as stream:
        next(job_updates(stream, run(process)))
        assert stream.last is not None
        return stream.last


def test_each_change_is_an_event_with_the_job_as_listed(process: Web) -> None:
    with listening(process) as stream:
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["cache-control"] == "no-store"
        id = run(process, "ä\u2028", {"n": 1})
        updates = job_updates(stream, id)
        for change in ("", "cancel", "retry"):
            began = database.server_now()
            if change:
                act(process, id, change)
            update = next(updates)
            (listed,) = process.get("/api/jobs").body["jobs"]
            assert {**update, "server_time": ""} == {"id": id, "kind": "changed", "job": listed, "server_time": ""}
            sent = parse_utc(update["server_time"], field="server_time")
            assert sent is not None
            # Two processes know the server's clock to within a round trip. The first update is from before the loop.
            if change:
                assert began - seconds(1) < sent < database.server_now() + seconds(1)
        job = start_job(id, token="t")
        assert next(updates)["job"]["state"] == "executing"
        assert job_attempt.finish(job, JobOutcome(state=JobState.SUCCESS), token="t", now=database.server_now())
        assert next(updates)["job"]["state"] == "success"
        job_operations.clear([JobState.SUCCESS], None, now=database.server_now(), limit=100)
        update = next(updates)
        assert (update["kind"], update["job"]) == ("deleted", None)


def test_reservation_sends_no_event_and_the_outcome_one(process: Web) -> None:
    ids = [run(process, number) for number in range(2)]
    page = [job for id in ids if (job := model.jobs().find_one(ObjectId(id))) is not None]
    now = max(job["due"] for job in page)
    with listening(process) as stream:
        updates = job_updates(stream, *ids)
        job_attempt.finish_and_start([], page, token="t", now=now, until=now + seconds(30))
        for job in reversed(page):
            assert job_attempt.finish(job, JobOutcome(state=JobState.SUCCESS), token="t", now=now)
        changes = [(update["id"], update["job"]["attempts"]) for update in islice(updates, 3)]
    assert changes == [(ids[0], 1), (ids[1], 1), (ids[0], 1)]


@pytest.mark.slow
def test_many_changes_are_sent_once_and_in_order(process: Web) -> None:
    with listening(process) as stream, ThreadPoolExecutor(4) as threads:
        ids = list(threads.map(lambda number: run(process, number), range(150)))
        list(threads.map(lambda id: act(process, id, "cancel"), ids))
        tokens, updates = [], []
        for update in islice(job_updates(stream, *ids), 300):
            updates.append(update)
            tokens.append(stream.last)
        next(job_updates(stream, run(process), *ids))  # and no more about them
    assert sorted(update["id"] for update in updates) == sorted(ids * 2)
    assert {update["job"]["state"] for update in updates[150:]} == {"canceled"}
    assert tokens == sorted(tokens, key=str)
    assert len(set(tokens)) == 300


def test_a_reconnecting_client_gets_missed_events_once(process: Web) -> None:
    last = heard(process)
    missed = [run(process, number) for number in range(30)]
    for begin in ({"last": last}, {"query": f"?lastEventId={last}"}):
        with listening(process, **begin) as again:
            live = run(process)
            assert until(again, live)[:30] == missed


def test_a_client_without_events_can_reconnect_too(process: Web) -> None:
    heard(process)
    with Stream(process, PATH) as stream:
        begun = next(stream.blocks())["id"]
    missed = run(process)
    with listening(process, begun) as again:
        assert until(again, missed) == [missed]


@pytest.mark.slow
def test_a_client_that_reconnects_often_misses_no_event_of_many_jobs(process: Web) -> None:
    last, seen = heard(process), list[str]()
    with ThreadPoolExecutor(4) as threads:
        stored = [threads.submit(run, process) for _ in range(400)]
        while len(seen) < 400:
            with listening(process, last) as stream:
                seen += [data["id"] for _, data in islice(stream.events(), min(37, 400 - len(seen)))]
                assert stream.last is not None
                last = stream.last
    assert len(seen) == 400
    assert set(seen) == {future.result() for future in stored}


@pytest.mark.processes
def test_another_process_continues_the_event_stream(process: Web, tmp_path: Path) -> None:
    last = heard(process)
    missed = run(process)
    with forked_web(tmp_path, **ON) as other, listening(other, last) as again:
        assert until(again, missed) == [missed]


def foreign_token() -> str:
    """Return the token of a change in another collection."""
    with database.collection("elsewhere").watch() as changes:
        database.collection("elsewhere").insert_one({})
        return str(next(changes)["_id"]["_data"])


@pytest.mark.parametrize(
    "token", ["nonsense", "8", "82", "ABCDEF", "82abcdef", "9" * 5_000, "too old", "of the future", "of others"]
)
def test_a_client_whose_events_are_no_longer_stored_gets_a_gap_and_continues(token: str, process: Web) -> None:
    last = heard(process)
    made = {"too old": f"8200000001{last[10:]}", "of the future": f"82FFFFFFFF{last[10:]}"}
    made |= {"of others": foreign_token()}
    with ThreadPoolExecutor(1) as threads:
        storing = threads.submit(lambda: [run(process) for _ in range(20)])  # what is in between is found out by events
        with listening(process, made.get(token, token)) as stream:
            events = stream.events()
            name, data = next(events)
            assert (name, list(data)) == ("reset", ["message"])
            rest = until(stream, run(process) if storing.result() else "")
        after = stream.last
    with listening(process, after) as again:
        live = run(process)
        assert until(again, live) == [live]
    assert len(rest) == len(set(rest))


class SlowMongo(Mongo):
    """Takes longer than anybody waits to resume a change stream, as after a token far back in a large log."""

    def _command(self, program: str) -> list[str]:
        return [*super()._command(program), "--setParameter", "enableTestCommands=1"]

    def be_slow(self) -> None:
        slow = {"failCommands": ["aggregate"], "blockConnection": True, "blockTimeMS": 20_000}
        with self._connect() as client:
            client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=slow)


@pytest.mark.processes
def test_a_client_whose_events_are_not_found_in_time_gets_a_gap_and_continues(tmp_path: Path) -> None:
    with SlowMongo(tmp_path / "mongo") as mongo, forked_web(tmp_path, **ON, MONGO_DB_URL=mongo.url) as process:
        last = heard(process)
        with listening(process) as other:  # keeps the reader on its change stream
            missed = run(process)
            next(job_updates(other, missed))
            mongo.be_slow()
            with listening(process, last) as stream:
                name, data = next(stream.events())
                assert (name, list(data)) == ("reset", ["message"])
                live = run(process)
                assert until(stream, live) == [live]
                assert next(job_updates(other, live))["id"] == live


def test_a_collection_that_was_dropped_is_a_gap(process: Web) -> None:
    with listening(process) as stream:
        run(process)
        model.jobs().drop()
        assert [name for name, _ in stream.events()].count("job-update") >= 1
        last = stream.last
    with listening(process, last) as again:
        assert next(again.events())[0] == "reset"
        live = run(process)
        assert until(again, live) == [live]


def test_an_idle_client_gets_newer_resume_tokens(process: Web) -> None:
    heard(process)  # the reader is past the jobs that were deleted before the test
    with Stream(process, PATH) as stream:
        blocks = stream.blocks()
        first = next(blocks)["id"]
        database.collection("elsewhere").insert_one({})
        block = next(block for block in blocks if block.get("id", first) > first)
        assert (block["event"], block["data"]) == ("ping", "")  # which a page sees, unlike an event without data


def readers() -> int:
    """Count the change streams of jobs that are read: those of processes that were killed stay on the server unread."""
    read = {"cursor.lastAccessDate": {"$gt": database.server_now() - seconds(5)}}
    stages: list[dict[str, Any]] = [
        {"$currentOp": {"idleCursors": True, "allUsers": True}},
        {"$match": {"ns": f"{database.database().name}.{model.JOBS_COLLECTION}", **read}},
    ]
    with database.client().admin.aggregate(stages) as found:
        return len({operation["cursor"]["cursorId"] for operation in found if "$changeStream" in str(operation)})


@pytest.mark.slow
def test_one_reader_serves_all_listeners_and_ends_with_the_last(process: Web) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(listening(process)) for _ in range(20)]
        id = run(process)
        for stream in streams:
            assert next(job_updates(stream, id))["id"] == id
        eventually(lambda: readers() == 1)  # those of earlier tests have ended
    with promptly(4):  # it was closed, and not forgotten, when it would count as read for five seconds
        eventually(lambda: readers() == 0)


@pytest.mark.slow
def test_each_of_40_changes_reaches_50_pages_before_the_next(process: Web, figure: Callable[[str], None]) -> None:
    took = []
    with ExitStack() as stack:
        streams = [stack.enter_context(listening(process)) for _ in range(50)]
        id = run(process)
        for stream in streams:
            next(job_updates(stream, id))
        first_began = time.monotonic()
        for number in range(40):
            began = time.monotonic()
            model.jobs().update_one(
                {"_id": ObjectId(id)}, {"$set": {"progress": {"percent": float(number), "note": ""}}}
            )
            for stream in streams:
                assert next(job_updates(stream, id))["job"]["progress"]["percent"] == number
                took.append(time.monotonic() - began)
        in_all = time.monotonic() - first_began
    took.sort()
    figure(f"jobs: a change reached 50 pages in {took[1000] * 1000:.0f} ms (p50), {took[1979] * 1000:.0f} ms (p99)")
    # A read that is not ended by its change ends after this time, so that one per change would take longer.
    assert in_all < 40 * WAIT_MS / 1000


def test_a_job_larger_than_the_buffer_of_a_listener_arrives(process: Web) -> None:
    last = heard(process)
    id = run(process)
    model.jobs().update_one({"_id": ObjectId(id)}, {"$set": {"arguments": ["\0" * 900_000]}})  # six characters each
    with listening(process, last) as stream:
        assert any(
            len(update["job"]["arguments"][0]) == 900_000
            for update in job_updates(stream, id)
            if update["job"]["arguments"]
        )


@pytest.mark.processes
def test_event_stream_ends_immediately_on_termination(clean: Servers, tmp_path: Path) -> None:
    with forked_web(tmp_path, **ON) as process, listening(process) as stream, listening(process) as other:
        with promptly(3):
            os.kill(process.child.pid, signal.SIGTERM)
            assert [block for one in (stream, other) for block in one.blocks() if block.get("data")] == []
            assert stream.is_complete
            assert other.is_complete
            assert process.child.wait(30) == 0
        assert "Traceback" not in process.log
        assert "error" not in process.log


@pytest.mark.processes
def test_event_stream_starts_without_mongodb_and_sends_events_once_it_is_available(tmp_path: Path) -> None:
    mongo = Mongo(tmp_path / "mongo", free_port())
    with forked_web(tmp_path, **ON, MONGO_DB_URL=mongo.url) as process:
        with promptly(5):
            answer = process.get(PATH)
        assert (answer.status, answer.body["error"]) == (503, "unavailable")
        assert process.get("/healthz").status == 200
        with mongo:
            eventually(lambda: process.get("/readyz").status == 200)
            with listening(process) as stream:
                id = run(process)
                assert next(job_updates(stream, id))["id"] == id
        assert "Traceback" not in process.log


@pytest.mark.processes
def test_no_change_is_missed_in_a_crash_of_mongodb(tmp_path: Path) -> None:
    mongo = Mongo(tmp_path / "mongo", free_port())
    with mongo, forked_web(tmp_path, **ON, MONGO_DB_URL=mongo.url) as process, listening(process) as stream:
        id = run(process)
        assert next(job_updates(stream, id))["id"] == id
        mongo.kill()
        eventually(lambda: "No job events" in process.log)
        mongo.start()
        with MongoClient[dict[str, Any]](mongo.url) as client:
            jobs = client.get_default_database()[model.JOBS_COLLECTION]
            for number in range(50):
                jobs.update_one({"_id": ObjectId(id)}, {"$set": {"priority": number + 1}})
        assert len([next(job_updates(stream, id)) for _ in range(50)]) == 50
        last = run(process)
        assert until(stream, last) == [last]
        eventually(lambda: "Job events flow again" in process.log)
        assert process.log.count("No job events") == 1
        assert "Traceback" not in process.log


@pytest.mark.processes
def test_no_change_is_missed_in_a_step_down(tmp_path: Path) -> None:
    with replica_set(tmp_path) as members, forked_web(tmp_path, **ON, MONGO_DB_URL=members.url) as process:
        with listening(process) as stream:
            ids = [run(process) for _ in range(5)]
            members.step_down()
            for _ in range(5):
                ids.append(eventually(lambda: run(process)))
            assert until(stream, ids[-1]) == ids
        assert "Traceback" not in process.log
