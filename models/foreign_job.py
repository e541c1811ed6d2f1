"""Documents in `jobs_data` that are not jobs, such as those of the JavaScript package, and their adoption.

Guarantee: a document is adopted by one conditional write, only while the fields that were read are unchanged. An
adopted job is a job like any other, so an interrupted adoption continues with the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bson import MinKey
from pymongo import UpdateOne

from models.database import Document
from models.job import COUNTED_ATTEMPTS, jobs
from models.listing import Sample, sample

MAX_FOREIGN_COUNT = 10_000
FOREIGN_FINISHED_STATES = ("success", "canceled", "cancelled")
READ_FIELDS = ("name", "state", "due", "created", "priority", "arguments", "history")

FIELDS_OF_RELEASE_0_1 = ("waiting", "first", "claim")  # which made documents of other programs due

# Every document meets the condition on the state; with it, the server skips the jobs in the index.
_IS_FOREIGN: Document = {"attempts": {"$not": COUNTED_ATTEMPTS["attempts"]}, "state": {"$gte": MinKey()}}
_INDEX = "jobs_in_a_state_by_attempts"


@dataclass(frozen=True, kw_only=True)
class AdoptedJob:
    """A document, and its fields as a job."""

    document: Document
    fields: Document


def count() -> int:
    """Count the documents that are not jobs, up to `MAX_FOREIGN_COUNT`. The cost does not depend on the jobs."""
    return jobs().count_documents(_IS_FOREIGN, hint=_INDEX, limit=MAX_FOREIGN_COUNT)


def count_unindexed() -> int:
    """Count them before `migrate` has created the index, by reading the whole collection."""
    return jobs().count_documents(_IS_FOREIGN, limit=MAX_FOREIGN_COUNT)


def unfinished() -> Sample:
    """Count the documents that are neither `success` nor `canceled`, up to `MAX_FOREIGN_COUNT`, and read some ids."""
    condition = {"attempts": _IS_FOREIGN["attempts"], "state": {"$nin": FOREIGN_FINISHED_STATES}}
    return sample(jobs(), condition, index=_INDEX, max_count=MAX_FOREIGN_COUNT)


def walk(names: Sequence[str] = (), *, batch: int) -> Iterator[Document]:
    """Yield the documents that are not jobs, of these names or of all, also while they are adopted."""
    of_names: Document = {"name": {"$in": [*names]}} if names else {}
    yield from jobs().find({**_IS_FOREIGN, **of_names}, dict.fromkeys(READ_FIELDS, 1), hint=_INDEX).batch_size(batch)


def adopt(found: Iterable[AdoptedJob]) -> int:
    """Make documents jobs, except those that changed since they were read; return the number of new jobs."""
    writes = [UpdateOne(_unchanged(one.document), _change(one.fields), hint="_id_") for one in found]
    return jobs().bulk_write(writes, ordered=False).modified_count if writes else 0


def _unchanged(document: Document) -> Document:
    return {"_id": document["_id"], **_IS_FOREIGN, **{name: {"$eq": document.get(name)} for name in READ_FIELDS}}


def _change(fields: Document) -> Document:
    return {"$set": fields, "$unset": {name: "" for name in FIELDS_OF_RELEASE_0_1 if name not in fields}}
