"""Write probe of the database: collection `qm_readiness`, one document that is written repeatedly.

{_id: "web", at}
"""

from __future__ import annotations

from pymongo import WriteConcern

from models.database import collection

READINESS_COLLECTION = "qm_readiness"
MAJORITY = WriteConcern("majority")


def write() -> None:
    """Write the document with majority write concern. Raises the errors of the driver."""
    durable = collection(READINESS_COLLECTION).with_options(write_concern=MAJORITY)
    durable.update_one({"_id": "web"}, {"$currentDate": {"at": True}}, upsert=True)
