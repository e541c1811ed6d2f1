"""Trial accounts of somebody else, each expired at the second try; `second_try_log` has a line a try."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from models.database import collection
from queue_manager import DueDocuments, RetryPolicy

trials = DueDocuments(
    name="second-try",
    title="Trials",
    description="Trial accounts, expired at the second try.",
    collection="second_try",
    due="ends_at",
    where={"status": "trial"},
    every=timedelta(seconds=1),
)


@trials.item(retry=RetryPolicy(max_attempts=3, base=timedelta(seconds=0.5)))
def end_trial(account: dict[str, Any]) -> dict[str, Any]:
    tries = collection("second_try_log")
    tries.insert_one({"account": account["_id"]})
    if tries.count_documents({"account": account["_id"]}) < 2:
        raise ValueError("not at the first try")
    return {"$set": {"status": "expired"}}
