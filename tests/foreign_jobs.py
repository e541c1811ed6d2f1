"""Documents in `jobs_data` as the JavaScript package wrote them whose collection it was."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bson import Int64, ObjectId

from models import job
from models.database import Document
from queue_manager.core.clock import minutes

TEXT_ID = "aB3dEfGhIjKlMnOpQ"
STATES = ("pending", "failure", "success", "cancelled", "executing")


def foreign_job(name: str, state: str, now: datetime, *, id: Any) -> Document:
    return {
        "_id": id,
        "name": name,
        "created": now - minutes(60),
        "serverId": "jqJ8AGsWfQqDTKx4D",
        "state": state,
        "due": now - minutes(50),
        "priority": 0,
        "data": {"sent": 1},
        "arguments": ["a@example.com"],
        "history": [{"date": now - minutes(50), "state": state, "serverId": "jqJ8AGsWfQqDTKx4D"}],
    }


def add_foreign_jobs(name: str, now: datetime) -> list[Document]:
    """Store one in each state, and some under ids of other types; return them."""
    ids: list[Any] = [TEXT_ID, *(f"{state}aBcDeF" for state in STATES[1:])]
    documents = [foreign_job(name, state, now, id=id) for id, state in zip(ids, STATES, strict=True)]
    others = [Int64(5), ObjectId(), "a" * 24, {"number": 5}]
    documents += [foreign_job(name, "failure", now, id=id) for id in others]
    documents += [{"_id": "no job at all"}, {"_id": "odd", "name": 5, "state": None, "history": "none"}]
    job.jobs().insert_many(documents)
    return documents


def foreign_jobs() -> list[Document]:
    """Return what is stored that is not a job."""
    return [one for one in job.jobs().find() if not job.is_job(one)]
