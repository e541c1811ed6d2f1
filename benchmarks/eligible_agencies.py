"""Eligible agencies: one aggregation, compared with the query per agency that the source's diagram draws."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId

from beat_schedule import SYSTEMS
from benchmarks.agencies import MANAGED, Agencies
from benchmarks.harness import Bench, Result, Way, expect
from models import account, pulse, schema, subscription

SUBSCRIPTIONS = 1_000_000
NOW = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
UNTIL, ASKED_SINCE = NOW - timedelta(days=30), NOW - timedelta(days=31)


def run(bench: Bench) -> Result:
    agencies = Agencies(bench.sized(SUBSCRIPTIONS), NOW)
    bench.fill(subscription.subscriptions(), agencies.subscriptions(), bench.sized(SUBSCRIPTIONS))
    bench.fill(pulse.pulses(), agencies.pulses, len(agencies.pulses))
    schema.migrate(SYSTEMS)

    def check(found: list[Any]) -> None:
        expect("agencies, each once", len(found), len(agencies.eligible))
        expect("eligible agencies", set(found), agencies.eligible)

    return bench.compare(
        "eligible agencies",
        f"{bench.sized(SUBSCRIPTIONS):,} subscriptions of {agencies.accounts:,} agencies and {len(agencies.pulses):,} "
        f"pulses; {len(agencies.eligible):,} agencies are eligible",
        [
            Way(name="one aggregation, ours", run=aggregation, check=check),
            Way(name="a query per agency", run=query_per_agency, check=check),
        ],
    )


def aggregation() -> list[ObjectId]:
    return [agency.parent_account for agency in subscription.eligible(MANAGED, until=UNTIL, asked_since=ASKED_SINCE)]


def query_per_agency() -> list[ObjectId]:
    return [agency["_id"] for agency in _agencies() if not _has_blocking_pulse(agency)]


def _agencies() -> Iterable[dict[str, Any]]:
    """Group the subscriptions as simply as the diagram does; what is in these data needs no more."""
    seconds_or_date = {
        "$cond": [
            {"$isNumber": "$created_at"},
            {"$toDate": {"$toLong": {"$multiply": ["$created_at", 1000]}}},
            "$created_at",
        ]
    }
    stages: list[dict[str, Any]] = [
        {"$match": {"status": "active", "plan.metadata.product_type": {"$in": MANAGED}}},
        {"$project": {"account": 1, "account_id": "$metadata.account_id", "started": seconds_or_date}},
        {"$sort": {"started": 1}},
        {
            "$group": {
                "_id": "$account",
                "account_id": {"$first": "$account_id"},
                "started": {"$first": "$started"},
                "subscription_ids": {"$push": "$_id"},
            }
        },
        {"$match": {"started": {"$lte": UNTIL}}},
    ]
    return subscription.subscriptions().aggregate(stages, allowDiskUse=True, hint="managed_by_account")


def _has_blocking_pulse(agency: dict[str, Any]) -> bool:
    block = pulse.blocking(ASKED_SINCE)
    of_it = [
        {"account_id": {"$in": account.spellings(agency["account_id"])}},
        {"metadata.parent_account": {"$in": account.spellings(agency["_id"])}},
    ]
    where = {"$and": [{"$or": of_it}, {"$or": block.pop("$or")}], **block}
    return pulse.pulses().find_one(where, {"_id": 1}) is not None
