"""`jobs.run`: what it stores, what it refuses, unique and singular jobs, and registration of functions."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import bson
import pytest
from bson import DBRef, ObjectId, json_util
from pymongo import WriteConcern
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError

from models import job, job_operations
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import settings
from services.job_queues import InvalidJob, UnknownJob
from services.job_queues.fields import job_key, search_text
from services.job_queues.registry import Registry
from tests.job_lab import Lab
from tests.models.test_due_at_scale import profile
from tests.rooms import T0

THREADS = 16


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


def at_once(do: Callable[[], Any]) -> list[Any]:
    """Let 16 threads do the same at the same moment; return what each got."""
    gate = threading.Barrier(THREADS)

    def act(_: int) -> Any:
        gate.wait()
        return do()

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(act, range(THREADS)))


def invoice(number: int, /, currency: str = "EUR", *, run: object) -> None: ...


def report(year: int, run: object) -> None: ...


def taken(*_: object) -> None: ...


@functools.wraps(invoice)
def decorated(*arguments: int, run: object) -> None: ...


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (invoice, (), r"missing a required argument: 'number'; the job bill takes \(number.*currency"),
        (invoice, (1, "EUR", 2), "too many positional arguments; the job bill takes"),
        (report, (2026, 1), "multiple values for argument 'run'"),
        (report, (), r"the job bill takes \(year, run\)$"),
    ],
)
def test_arguments_that_the_function_does_not_take_are_refused(
    lab: Lab, function: Callable[..., None], arguments: tuple[object, ...], message: str
) -> None:
    lab.registry.register("bill", function)
    with pytest.raises(InvalidJob, match=message) as refused:
        lab.jobs.run("bill", *arguments)
    assert refused.value.field == "arguments"
    assert lab.jobs.list() == []


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (invoice, (1,)),
        (invoice, (1, "USD")),
        (report, (2026,)),
        (taken, (1, 2, 3)),
        (decorated, ()),
        (max, (1, 2)),
        (dict, ()),
    ],
)
def test_arguments_that_the_function_takes_are_stored(
    lab: Lab, function: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    lab.registry.register("bill", function)
    assert lab.run("bill", *arguments)


def test_job_is_stored_before_run_returns(lab: Lab) -> None:
    stored = lab.jobs.run("mail", "a", {"to": [1, 2.5, None]}, priority=3)
    assert stored is not None
    found = lab.jobs.get(str(stored["_id"]))
    assert found == stored
    assert found["arguments"] == ["a", {"to": [1, 2.5, None]}]
    assert (found["name"], found["state"], found["priority"], found["attempts"]) == ("mail", "pending", 3, 0)
    assert found["due"] == found["created"] == found["updated"] == T0
    assert [entry["state"] for entry in found["history"]] == ["pending"]


@pytest.mark.parametrize(
    ("when", "due"),
    [
        ({}, T0),
        ({"delay": minutes(5)}, T0 + minutes(5)),
        ({"at": T0 + minutes(7)}, T0 + minutes(7)),
        ({"at": T0 - minutes(7)}, T0 - minutes(7)),
        ({"at": datetime(2026, 2, 1, 1, tzinfo=UTC).astimezone()}, datetime(2026, 2, 1, 1, tzinfo=UTC)),
        ({"delay": timedelta(microseconds=1999)}, T0 + timedelta(milliseconds=1)),
    ],
)
def test_due_time_is_now_or_as_requested(lab: Lab, when: dict[str, Any], due: datetime) -> None:
    assert lab.jobs.get(lab.run("mail", **when))["due"] == due


BAD: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("argument 2", ("fine", object()), {}),
    ("argument 1", ({1, 2},), {}),
    ("argument 3", (1, 2, 2**70), {}),
    ("argument 1", ("\ud800",), {}),
    ("argument 1", ({1: "a key that is no text"},), {}),
    ("argument 2", (1, uuid4()), {}),
    ("argument 2", (1, [{"a": {"$id": 5, "$ref": "b"}}]), {}),
    ("argument 1", (nested(5_000),), {}),
    ("argument 1", (nested(190),), {}),
    ("arguments", ("x" * 1024 * 1024,), {}),
    ("arguments", ("x" * 600_000, "x" * 600_000), {}),
    ("at", (), {"at": datetime(2026, 2, 1)}),
    ("at", (), {"at": "2026-02-01"}),
    ("at", (), {"at": T0, "delay": seconds(1)}),
    ("at", (), {"at": T0 + timedelta(days=4000)}),
    ("at", (), {"at": datetime(1969, 1, 1, tzinfo=UTC)}),
    ("delay", (), {"delay": 5}),
    ("delay", (), {"delay": seconds(-1)}),
    ("delay", (), {"delay": timedelta(days=4000)}),
    ("priority", (), {"priority": 101}),
    ("priority", (), {"priority": True}),
    ("priority", (), {"priority": 1.5}),
]


@pytest.mark.parametrize(("named", "arguments", "options"), BAD, ids=range(len(BAD)))
def test_arguments_that_cannot_be_stored_are_named_and_nothing_is_stored(
    lab: Lab, named: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidJob, match=named):
        lab.jobs.run("mail", *arguments, **options)
    assert job.jobs().count_documents({}) == 0


@pytest.mark.parametrize(
    "argument", [{"$ref": "a"}, {"$ref": 5, "$id": 5}, {"a": "$ref", "$id": 5}, {"a": DBRef("b", 5)}], ids=str
)
def test_arguments_that_resemble_references_reach_the_function_unchanged(lab: Lab, argument: Any) -> None:
    assert lab.jobs.get(lab.run("mail", argument))["arguments"] == [argument]


def test_nested_arguments_are_accepted_up_to_the_limit_of_mongodb(lab: Lab) -> None:
    assert lab.jobs.get(lab.run("mail", nested(60)))["arguments"] == [nested(60)]


@pytest.mark.parametrize(
    "store",
    [
        lambda lab, _: lab.jobs.run("mail", 1),
        lambda lab, _: lab.jobs.run_many("mail", [[1], [2]], unique=True),
        lambda lab, id: job_operations.restore([lab.jobs.remove(id)]),
    ],
    ids=["run", "run_many", "restore"],
)
def test_job_that_is_not_confirmed_by_enough_members_is_an_error(
    store: Callable[[Lab, str], Any], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert_many, two_members = Collection.insert_many, WriteConcern(w=2, wtimeout=1)  # there is one

    def insert(jobs: Collection[Any], *arguments: Any, **options: Any) -> Any:
        return insert_many(jobs.with_options(write_concern=two_members), *arguments, **options)

    stored = lab.run("mail")
    monkeypatch.setattr(Collection, "insert_many", insert)
    with pytest.raises(BulkWriteError):
        store(lab, stored)


def test_unknown_name_is_refused_with_the_known_ones(lab: Lab) -> None:
    with pytest.raises(UnknownJob, match="'nobody'; the jobs are: mail, report"):
        lab.jobs.run("nobody")
    assert job.jobs().count_documents({}) == 0


@pytest.mark.parametrize("name", ["", "a b", None, ["mail"], 7])
def test_malformed_name_is_refused(lab: Lab, name: Any) -> None:
    with pytest.raises(InvalidJob, match="is not a valid name"):
        lab.jobs.run(name)
    assert job.jobs().count_documents({}) == 0


def test_error_without_registered_jobs_names_the_setting_that_lists_them(lab: Lab) -> None:
    with pytest.raises(UnknownJob, match="JOBS_IMPORTS"):
        Registry().find("mail")


# Many at once


def test_jobs_stored_in_bulk_equal_single_ones(lab: Lab) -> None:
    found = lab.jobs.run_many("mail", [(1, "a"), [2], ()], priority=3, delay=minutes(1))
    one = lab.jobs.run("mail", 1, "a", priority=3, delay=minutes(1))
    assert (found.stored, found.blocked) == (3, 0)
    assert found.jobs[0] is not None
    assert one is not None
    assert {**found.jobs[0], "_id": 0} == {**one, "_id": 0}
    assert [lab.jobs.get(str(stored["_id"])) for stored in found.jobs if stored] == found.jobs


@pytest.fixture
def had_list(lab: Lab) -> None:
    """A job once had a list of times, which makes the indexes multikey ones for as long as they exist."""
    job.jobs().update_one({"_id": ObjectId(lab.run("mail"))}, {"$set": {"waiting": [lab.clock()]}})
    job.jobs().delete_many({})


def test_many_jobs_run_in_their_order(lab: Lab) -> None:
    assert lab.jobs.run_many("mail", ([number] for number in range(2_500))).stored == 2_500
    assert lab.run_through(budget=minutes(5)).succeeded == 2_500
    assert [arguments[0] for arguments in lab.ran] == list(range(2_500))


@pytest.mark.usefixtures("had_list")
def test_the_order_outlasts_a_job_with_a_list_of_times(lab: Lab) -> None:
    lab.jobs.run_many("mail", [[number] for number in range(300)])
    lab.run("mail", "later", delay=minutes(1))
    lab.run("mail", "first", priority=1)
    assert job.next_due("mail") == lab.clock()
    lab.run_through()
    assert [arguments[0] for arguments in lab.ran] == ["first", *range(300)]
    assert job.next_due("mail") == lab.clock() + minutes(1)


@pytest.mark.usefixtures("had_list")
def test_after_a_list_of_times_only_the_jobs_that_are_returned_are_read(lab: Lab) -> None:
    lab.jobs.run_many("mail", [[number] for number in range(300)])
    with profile(job.JOBS_COLLECTION) as found:
        assert len(job.next_jobs("mail", now=lab.clock(), limit=5)) == 5
        assert job.next_due("mail") == lab.clock()
    assert [one["docsExamined"] for one in found] == [5, 1]


@pytest.mark.parametrize("option", ["unique", "singular"])
def test_existing_unique_jobs_of_a_bulk_are_blocked(lab: Lab, option: str) -> None:
    lab.run("mail", 1)
    only: dict[str, Any] = {option: True}
    found = lab.jobs.run_many("mail", [[0], [1], [2], [0], [3]], **only)
    assert [stored and stored["arguments"][0] for stored in found.jobs] == [0, None, 2, None, 3]
    assert (found.stored, found.blocked) == (3, 2)
    assert lab.jobs.run_many("mail", [[2]], **only).jobs == [None]
    assert lab.states() == {"pending": 4}


def test_many_threads_store_each_unique_job_once(lab: Lab) -> None:
    found = at_once(lambda: lab.jobs.run_many("mail", [[number] for number in range(20)], unique=True))
    assert sum(one.stored for one in found) == 20
    assert lab.states() == {"pending": 20}


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        ([[1], "text"], r"^calls\[1\]: must be a list or tuple"),
        ([[1], [object()]], r"^calls\[1\]\.arguments: MongoDB cannot store argument 1"),
        ([[1, 2], [1, 2, 3]], r"^calls\[1\]\.arguments: too many positional arguments"),
    ],
)
def test_no_job_of_a_bulk_is_stored_if_one_is_invalid(lab: Lab, calls: list[Any], named: str) -> None:
    lab.registry.register("pair", lambda one, other=None: None)
    with pytest.raises(InvalidJob, match=named):
        lab.jobs.run_many("pair", calls)
    assert job.jobs().count_documents({}) == 0


def test_unknown_name_and_options_of_many_jobs_are_refused(lab: Lab) -> None:
    with pytest.raises(UnknownJob):
        lab.jobs.run_many("nobody", [[1]])
    with pytest.raises(InvalidJob, match="priority"):
        lab.jobs.run_many("mail", [[1]], priority=1000)
    assert lab.jobs.run_many("mail", []).jobs == []


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [1, -1, 0, 2**31, -(2**31), -(2**31) - 1, 2**62],
        [1.0, -0.0, 1e22, 1.5e-9, 0.1],
        [True, False, None, "", 'ä\u2028"\\', {"b": [1, (2, 3)], "a": {"c": None}}],
    ],
)
def test_key_and_text_of_plain_arguments_are_those_of_bson(arguments: list[Any]) -> None:
    text = json_util.dumps(["mail", arguments], sort_keys=True, json_options=json_util.CANONICAL_JSON_OPTIONS)
    assert job_key("mail", arguments) == sha256(text.encode()).hexdigest()
    stored = bson.decode(bson.encode({"arguments": arguments}))["arguments"]
    assert search_text(arguments) == json.dumps(stored, ensure_ascii=False, separators=(",", ":"))


# Registering


async def asynchronous() -> None: ...


def generating() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("work", [None, "a text", 5, asynchronous, generating])
def test_object_that_is_not_a_plain_function_is_not_registered(work: Any) -> None:
    with pytest.raises(InvalidJob, match="mail"):
        Registry().register("mail", work)


def test_function_that_cannot_be_called_by_position_is_not_registered() -> None:
    def mail(to: str, *, subject: str, run: object) -> None: ...

    with pytest.raises(InvalidJob, match=r"the job mail passes arguments by position; .*\.mail requires subject="):
        Registry().register("mail", mail)


@pytest.mark.parametrize("name", ["", "a b", "ü", "a" * 129, None, 5])
def test_malformed_name_is_not_registered(name: Any) -> None:
    with pytest.raises(InvalidJob, match="name"):
        Registry().register(name, print)


def test_name_of_another_function_is_refused_and_the_same_function_is_not() -> None:
    registry = Registry()
    assert registry.register("mail", at_once) is at_once
    registry.register("mail", at_once)
    with pytest.raises(InvalidJob, match=r"already registered for .*at_once"):
        registry.register("mail", nested)
    assert registry.names() == ["mail"]


@pytest.mark.parametrize("source", ["import no_such_module", "def (", "1 / 0"])
def test_module_that_cannot_be_imported_is_named(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_jobs.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("JOBS_IMPORTS", '["broken_jobs"]')
    settings.cache_clear()
    try:
        with pytest.raises(ConfigurationError, match="JOBS_IMPORTS: 'broken_jobs' cannot be imported"):
            Registry().names()
    finally:
        monkeypatch.delenv("JOBS_IMPORTS")
        settings.cache_clear()


# The only one


@pytest.mark.parametrize("option", ["unique", "singular"])
@pytest.mark.parametrize("attempt", range(5))
def test_sixteen_threads_store_one_job(lab: Lab, option: str, attempt: int) -> None:
    only: dict[str, Any] = {option: True}
    stored = at_once(lambda: lab.jobs.run("mail", "42", **only))
    assert sum(document is not None for document in stored) == 1
    assert lab.states() == {"pending": 1}


def test_sixteen_threads_store_sixteen_plain_jobs(lab: Lab) -> None:
    assert None not in at_once(lambda: lab.jobs.run("mail", "42"))
    assert lab.states() == {"pending": THREADS}


def in_state(lab: Lab, state: str, **options: Any) -> str:
    """Store a job and bring it into `state`."""
    id = lab.run("mail", "42", **options)
    if state == "canceled":
        lab.jobs.cancel(id)
    elif state == "executing":
        lab.executing(id)
    elif state in ("success", "failure"):
        if state == "failure":
            lab.works["mail"] = lambda *_, run: 1 / 0
        lab.run_through()
    assert lab.state(id) == state
    return id


STATES = ["pending", "executing", "failure", "success", "canceled"]


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "alike"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("option", ["unique", "singular"])
def test_unique_and_singular_jobs_are_blocked_by_jobs_in_their_states(
    lab: Lab, option: str, state: str, plain: bool
) -> None:
    only: dict[str, Any] = {option: True}
    in_state(lab, state, **({} if plain else only))
    again = lab.jobs.run("mail", "42", **only)
    is_blocked = option == "unique" or state in ("pending", "executing", "failure")
    assert (again is None) is is_blocked
    assert lab.jobs.run("mail", "43", **only) is not None
    assert lab.jobs.run("report", "42", **only) is not None


def test_unique_job_can_be_stored_again_after_it_was_cleared(lab: Lab) -> None:
    in_state(lab, "success", unique=True)
    lab.jobs.clear(["success"])
    assert lab.jobs.run("mail", "42", unique=True) is not None


def test_arguments_are_equal_if_mongodb_stores_them_equally(lab: Lab) -> None:
    lab.run("mail", {"a": 1, "b": (2, 3)}, unique=True)
    assert lab.jobs.run("mail", {"b": [2, 3], "a": 1}, unique=True) is None
    assert lab.jobs.run("mail", {"a": 1.0, "b": [2, 3]}, unique=True) is not None
    assert len(lab.jobs.find("mail", {"b": [2, 3], "a": 1})) == 1


def test_new_jobs_from_many_threads_make_one_queue(lab: Lab) -> None:
    at_once(lambda: lab.jobs.run("report"))
    assert lab.names_dispatched() == ["report"]
