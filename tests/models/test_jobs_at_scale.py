"""Job queues read in proportion to their results, however many jobs exist: by `explain` and the commands sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice, product
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient, monitoring

from models import database, executing_job, job, job_attempt, job_pages
from models.database import Document
from models.job import JobState
from models.job_attempt import JobOutcome
from models.job_pages import JobQuery
from queue_manager.core.clock import hours, seconds
from queue_manager.core.process import PerProcess
from tests.job_lab import LEASE, Lab, count_jobs
from tests.real_servers import Servers
from tests.rooms import T0

pytestmark = pytest.mark.scale

NAMES, EXECUTING, DUE, PAGE = 20, 5, 12, 32
STATES = [JobState.SUCCESS] * 6 + [JobState.PENDING] * 3 + [JobState.FAILURE, JobState.CANCELED]


@pytest.fixture(autouse=True)
def emptied(clean: Servers) -> Iterator[None]:
    """Drop what a test stored: to delete it, document by document, takes the next one long."""
    yield
    job.jobs().drop()


def fill(count: int) -> Iterator[Document]:
    """Of most names a few jobs are due, hidden among those that wait for later; most are done."""
    for number in range(count):
        name, state = f"n{number % NAMES:02}", STATES[number // NAMES % len(STATES)]
        due = T0 + hours(1) + timedelta(milliseconds=number)
        if state is JobState.PENDING and number % NAMES < DUE and number % 3 == 0:
            due = T0 - timedelta(milliseconds=number)
        if number < EXECUTING:
            state = JobState.EXECUTING
        one: Document = {"_id": ObjectId(), "name": name, "arguments": [number], "key": f"{number % 1000:032x}"}
        one |= {"state": state, "priority": number % 3, "due": due, "created": T0, "updated": T0, "history": []}
        one["attempts"] = 0 if state is JobState.PENDING else 1
        if state in (JobState.PENDING, JobState.FAILURE):
            one["waiting"] = due
        if state is JobState.EXECUTING:
            one["claim"] = {"token": f"t{number}", "claimed_until": T0 + LEASE}
        yield one


def explained(command: Document) -> tuple[set[str], int, int, int]:
    """Return the stages of the plan, and the keys and documents read and the results of running it."""
    plan = database.database().command("explain", command, verbosity="executionStats")
    stages = set(found(plan, "stage"))
    keys, documents = max(found(plan, "totalKeysExamined")), max(found(plan, "totalDocsExamined"))
    return stages, keys, documents, max(found(plan, "nReturned"))


def found(node: Any, name: str) -> list[Any]:
    if isinstance(node, dict):
        own = [node[name]] if name in node else []
        return own + [value for inner in node.values() for value in found(inner, name)]
    return [value for inner in node for value in found(inner, name)] if isinstance(node, list) else []


class Recorder(monitoring.CommandListener):
    """Keeps the commands that are sent about jobs, in the form in which `explain` takes them."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Document]] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if event.command.get(event.command_name) == job.JOBS_COLLECTION:
            plain = {name: value for name, value in event.command.items() if name not in NOT_EXPLAINED}
            self.sent.append((event.command_name, plain))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...

    @property
    def reads(self) -> list[str]:
        return [name for name, _ in self.sent if name in ("find", "aggregate", "distinct", "count", "getMore")]


def all_states(counted: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    return {name: {state.value: states.get(state, 0) for state in JobState} for name, states in counted.items()}


NOT_EXPLAINED = ("lsid", "$db", "$clusterTime", "txnNumber", "$readPreference")


@contextmanager
def recorded(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    recorder = Recorder()
    with MongoClient[Document](servers.mongo.url, event_listeners=[recorder]) as client, monkeypatch.context() as patch:
        patch.setattr(database, "client", PerProcess(lambda: client))
        yield recorder


def look_at_everything(servers: Servers, count: int, figure: Callable[[str], None], patch: pytest.MonkeyPatch) -> None:
    documents = fill(count)
    while some := list(islice(documents, 20_000)):
        job.jobs().insert_many(some, ordered=False)
    lab = Lab(None, "n00")

    def shown(what: str, sent: tuple[str, Mapping[str, Any]]) -> tuple[set[str], int, int, int]:
        stages, keys, read, results = explained(dict(sent[1]))
        figure(f"jobs: {count:,}, {what}: {results} found, {keys} keys and {read} documents examined")
        assert not stages & {"COLLSCAN", "SORT"}
        return stages, keys, read, results

    with recorded(servers, patch) as recorder:
        names = job.due_names(T0)
        stages, keys, read, results = shown("names that are due", recorder.sent.pop())
        assert len(names) == results == DUE
        assert "DISTINCT_SCAN" in stages
        assert keys <= 2 * NAMES
        assert read == 0

        executing = executing_job.find()
        _, keys, read, results = shown("executing", recorder.sent.pop())
        assert len(executing) == results == EXECUTING
        assert keys <= EXECUTING + 1
        assert read == EXECUTING

        page = job.next_jobs("n07", now=T0, limit=PAGE)
        _, keys, read, results = shown("next of a name", recorder.sent.pop())
        assert len(page) == results == read == PAGE
        assert keys <= PAGE + 10

        assert job.next_due("n00") is not None
        _, keys, read, results = shown("first due of a name", recorder.sent.pop())
        assert (keys, read, results) == (1, 1, 1)  # read, to know that it is a job and not another program's document

        free = job.next_jobs("n07", now=T0, limit=1)[0]
        recorder.sent.clear()
        assert job_attempt.start(free, token="t", now=T0, until=T0 + LEASE)
        assert job_attempt.finish(free, JobOutcome(state=JobState.SUCCESS), token="t", now=T0)
        for _, command in recorder.sent:
            stages, keys, read, _ = explained(command)
            assert stages & {"IDHACK", "IXSCAN"}
            assert max(keys, read) <= 1
        assert len(recorder.sent) == 2
        lab.hand.advance(LEASE + seconds(1))
        dispatched = lab.dispatch(epoch=1)
        assert dispatched[1] == {"reaped": EXECUTING}
        assert len(dispatched[0]) >= DUE

        # Nothing is lost and no leader is new: what every dispatch does.
        recorder.sent.clear()
        lab.hand.advance(seconds(5))
        lab.dispatch(epoch=1)
        # What executes; which names are due until the next dispatch; what executes now, and which jobs are not counted.
        assert recorder.reads == ["find", "aggregate", "find", "find"]
        assert len(recorder.sent) == 5  # and before them, what executes with a malformed claim is made a failure
        for what, sent in (("malformed claims", recorder.sent[0]), ("finished and not counted", recorder.sent[-1])):
            _, keys, read, _ = shown(what, sent)
            assert (keys, read) == (0, 0)

        # However many finished jobs have the same arguments, what may be stored once reads those that are live.
        alike = {"key": f"{1:032x}"}
        one = job.jobs().find_one({**alike, "state": JobState.SUCCESS}) or {}
        live = job.jobs().count_documents({**alike, **job.LIVE})
        for options, most in (({"singular": True, "unique": False}, live), ({"singular": False, "unique": True}, 1)):
            recorder.sent.clear()
            assert job.insert([{**one, "_id": ObjectId()}], **options) == {0}
            _, keys, read, _ = shown("the same arguments", recorder.sent[0])
            assert read <= keys
            assert 0 < keys <= most

        # However many finished jobs are kept, the status reads the others, and two keys of each name and state.
        recorder.sent.clear()
        status = lab.jobs.status()
        asked = [*recorder.sent]
        live = sum(queue["states"][state] for queue in status["queues"] for state in job.LIVE_STATES)
        assert {queue["name"]: queue["states"] for queue in status["queues"]} == all_states(count_jobs())
        keys, read = map(sum, zip(*(shown("status", sent)[1:3] for sent in asked), strict=True))
        assert keys <= live + 10 * NAMES * len(JobState)
        assert read <= EXECUTING


def test_a_page_reads_only_its_own_jobs_for_any_query(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = fill(60_000)
    while some := list(islice(documents, 20_000)):
        job.jobs().insert_many(some, ordered=False)
    id = ObjectId()
    with recorded(servers, monkeypatch) as recorder:
        for by in ("_id", *job.JOB_SORT_FIELDS):
            middle = (id,) if by == "_id" else ({"due": T0 + hours(1), "updated": T0}.get(by, 1), id)
            for name, state in product((None, "n03"), (None, JobState.SUCCESS, JobState.EXECUTING)):
                for after, is_descending in product((None, middle), (True, False)):
                    asked = JobQuery(name=name, state=state, sort_by=by, is_descending=is_descending, after=after)
                    job_pages.page(asked, limit=PAGE)
                    while recorder.sent:
                        stages, keys, read, _ = explained(recorder.sent.pop()[1])
                        assert not stages & {"COLLSCAN", "SORT"}, asked
                        assert read <= PAGE + 2 + len(JobState), asked
                        assert keys <= PAGE + 30, asked


def test_dispatch_and_runs_read_only_what_they_need(
    servers: Servers, figure: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at_everything(servers, 200_000, figure, monkeypatch)


@pytest.mark.stress
def test_dispatch_and_runs_read_no_more_among_a_million(
    servers: Servers, figure: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at_everything(servers, 1_000_000, figure, monkeypatch)
