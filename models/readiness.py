"""Proof that the database takes writes: `qm_readiness`, one document that is written again and again.

{_id: "web", at}
"""

from __future__ import annotations

from pymongo import WriteConcern

from models.database import collection

NAME = "qm_readiness"
MAJORITY = WriteConcern("majority")


def write() -> None:
    """Write the document and wait until a majority of the members has it. Raises what the driver raises."""
    durable = collection(NAME).with_options(write_concern=MAJORITY)
    durable.update_one({"_id": "web"}, {"$currentDate": {"at": True}}, upsert=True)
