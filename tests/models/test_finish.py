"""`migrate --finish` removes exactly what release 0.1 left behind."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Int64

from beat_schedule import SYSTEMS
from models import job, schema, support_room
from models.database import collection
from models.job_queue import queues
from tests.rooms import T0

pytestmark = pytest.mark.usefixtures("clean")

CLAIM = {"token": "t-1", "held": True, "claimed_until": T0, "due_at": T0, "losses": 0}
OTHERS: list[Any] = [
    {**CLAIM, "insurer": "another program's"},
    {key: value for key, value in CLAIM.items() if key != "losses"},
    {**CLAIM, "token": 7},
    {**CLAIM, "token": ["t-1"]},
    {**CLAIM, "held": "yes"},
    {**CLAIM, "claimed_until": "soon"},
    {**CLAIM, "due_at": None},
    {**CLAIM, "losses": 0.5},
    [CLAIM],
    "a claim",
    T0,
    None,
]


@pytest.mark.parametrize("name", ["support_rooms", "job_queues"])
def test_only_claims_of_our_exact_form_are_removed(name: str) -> None:
    ours = [CLAIM, {**CLAIM, "token": None, "held": False}, {**CLAIM, "losses": Int64(3)}]
    collection(name).insert_many({"_id": f"ours-{at}", "claim": claim, "kept": at} for at, claim in enumerate(ours))
    collection(name).insert_many({"_id": at, "claim": claim} for at, claim in enumerate(OTHERS))
    collection(name).insert_one({"_id": "none"})
    assert schema.finish(SYSTEMS) == len(ours)
    assert list(collection(name).find({"kept": {"$gte": 0}}, sort=[("_id", 1)])) == [
        {"_id": f"ours-{at}", "kept": at} for at in range(len(ours))
    ]
    found = collection(name).find({"_id": {"$type": "int"}}, sort=[("_id", 1)])
    assert [document["claim"] for document in found] == OTHERS
    assert schema.finish(SYSTEMS) == 0


def test_claim_of_an_executing_job_stays() -> None:
    executing = {"state": "executing", "claim": {"token": "t", "claimed_until": T0, "worker": "here:1"}}
    job.jobs().insert_one(executing)
    schema.finish(SYSTEMS)
    assert job.jobs().find_one() == executing


def test_migrate_leaves_indexes_of_the_earlier_release_to_finish() -> None:
    old = [support_room.rooms(), queues()]
    for one in old:
        for name in schema.CLAIM_INDEXES:
            one.create_index([(name, 1)], name=name)
    job.jobs().create_index([("name", 1), ("x", 1)], name="one_executes")
    schema.migrate(SYSTEMS)
    assert all({*schema.CLAIM_INDEXES} <= {*one.index_information()} for one in old)
    wanted = {*job.jobs().index_information()} - {"one_executes"}
    for _ in range(2):
        schema.finish(SYSTEMS)
        assert all(not {*schema.CLAIM_INDEXES} & {*one.index_information()} for one in old)
        assert {*job.jobs().index_information()} == wanted
