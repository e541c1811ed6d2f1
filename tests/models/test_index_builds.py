"""The progress of an index build is reported while the index is built."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pymongo import IndexModel
from pymongo.errors import OperationFailure

from models import index_builds
from models.database import Document, collection
from models.index_builds import IndexBuild
from models.schema import create_indexes
from tests.real_servers import Servers

DOCUMENTS, BUILDS = 100_000, 50


@pytest.fixture
def filled(clean: Servers) -> Iterator[str]:
    name = "built"
    seed = collection("seed_of_built")
    seed.insert_one({})
    numbers = {"$range": [0, DOCUMENTS]}
    steps: list[Document] = [
        {"$set": {"_id": numbers}},
        {"$unwind": "$_id"},
        {"$set": {"value": "$_id"}},
        {"$out": name},
    ]
    seed.aggregate(steps)
    yield name
    collection(name).drop()
    seed.drop()


def test_a_build_reports_its_index_and_progress(filled: str) -> None:
    reports: list[IndexBuild] = []

    with index_builds.reported(reports.append, interval=0.001):
        for _ in range(BUILDS):  # one may be over before the server was asked
            created = create_indexes({filled: [IndexModel([("value", 1)], name="by_value")]})
            if reports:
                break
            collection(filled).drop_index("by_value")

    assert created == [f"{filled}.by_value"]
    assert reports
    assert {one.index for one in reports} == {f"{filled}.by_value"}
    assert all(0 <= one.done <= one.total for one in reports)


def test_without_a_build_nothing_is_reported(clean: Servers) -> None:
    reports: list[IndexBuild] = []

    with index_builds.reported(reports.append, interval=0.001):
        collection("built").find_one()

    assert reports == []


def test_processes_that_rebuild_a_changed_index_at_once_all_succeed(clean: Servers) -> None:
    collection("built").insert_many({"value": value} for value in range(100))
    create_indexes({"built": [IndexModel([("value", 1)], name="by_value")]})
    changed = {"built": [IndexModel([("value", -1)], name="by_value")]}
    with ThreadPoolExecutor(4) as threads:
        created = list(threads.map(lambda _: create_indexes(changed), range(4)))
    assert created == [["built.by_value"]] * 4
    assert collection("built").index_information()["by_value"]["key"] == [("value", -1)]
    collection("built").drop()


def test_index_of_another_program_with_the_same_definition_is_named_with_its_collection(clean: Servers) -> None:
    collection("built").create_index("value")
    error = "^built: Index already exists with a different name: value_1. Drop that one; by_value, with the same"
    with pytest.raises(OperationFailure, match=error):
        create_indexes({"built": [IndexModel([("value", 1)], name="by_value")]})
    collection("built").drop_index("value_1")
    assert create_indexes({"built": [IndexModel([("value", 1)], name="by_value")]}) == ["built.by_value"]
    collection("built").drop()
