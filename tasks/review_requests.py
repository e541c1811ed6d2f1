"""Celery tasks of review requests: a scan for eligible agencies, and one task for each agency."""

from __future__ import annotations

from typing import Any

from queue_manager.core.clock import seconds
from queue_manager.core.retry import RetryPolicy
from services.review_requests import INITIATOR, review_requests, system
from tasks.item import item_task
from tasks.scan import ScanReport, fan_out, scan_task


@scan_task(initiator=INITIATOR, sent="Sent review requests.", failed="Error in review requests")
def scan_eligible_agencies() -> ScanReport:
    return fan_out(create_review_request, review_requests())


@item_task(
    queue=str(system.queue),
    work=review_requests,
    retry=RetryPolicy(max_attempts=3, base=seconds(2)),
)
def create_review_request(
    account_id: str, subscription_ids: list[Any], parent_account: str | None, oldest_subscription: str
) -> dict[str, Any]:
    return review_requests().create(account_id, subscription_ids, parent_account, oldest_subscription)
