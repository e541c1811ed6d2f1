"""The subscriptions and pulses of the benchmark, and by construction who of them is eligible."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from bson import ObjectId

Document = dict[str, Any]

MANAGED = ["ads", "seo", "social"]
OTHERS = ["hosting", "listing", "site"]
SUBSCRIPTIONS_PER_ACCOUNT = 10
ACTIVE, OF_MANAGED_KIND = 0.7, 0.6
YOUNG = 0.1
"""Share of the accounts whose oldest subscription is younger than a month."""
SOME_PULSE = 0.6
TEXT_ID = 0.1
"""Share of ids in pulses that are written as text."""


class Agencies:
    """Makes the documents, always the same ones; knows who is `eligible` once all were made."""

    def __init__(self, subscriptions: int, now: datetime) -> None:
        self._random = random.Random(20)
        self._numbers = count(1)
        self._now = now
        self.accounts = subscriptions // SUBSCRIPTIONS_PER_ACCOUNT
        self.eligible: set[ObjectId] = set()
        self.pulses: list[Document] = []

    def subscriptions(self) -> Iterator[Document]:
        # In an order that does not keep an account's together, as years of sales do not.
        accounts = [(self._id(), self._id(), self._chance(YOUNG)) for _ in range(self.accounts)]
        counted = set()
        for _ in range(SUBSCRIPTIONS_PER_ACCOUNT):
            for parent, account, is_young in accounts:
                subscription = self._subscription(parent, account, is_young)
                if subscription["status"] == "active" and subscription["plan"]["metadata"]["product_type"] in MANAGED:
                    counted.add(parent)
                yield subscription
        for parent, account, is_young in accounts:
            is_blocked = self._chance(SOME_PULSE) and self._add_pulse(parent, account)
            if parent in counted and not is_young and not is_blocked:
                self.eligible.add(parent)

    def _subscription(self, parent: ObjectId, account: ObjectId, is_young: bool) -> Document:
        began = self._now - self._days(0, 29) if is_young else self._now - self._days(31, 1500)
        return {
            "_id": self._id(),
            "account": parent,
            "status": "active" if self._chance(ACTIVE) else "canceled",
            "created_at": began if self._chance(0.1) else int(began.timestamp()),
            "plan": {"metadata": {"product_type": self._kind()}, "interval": "month", "amount": 4900},
            "metadata": {"account_id": account, "source": "store"},
        }

    def _add_pulse(self, parent: ObjectId, account: ObjectId) -> bool:
        """Add one pulse of a random kind. Return True if it blocks."""
        long_ago, recently = self._now - self._days(32, 700), self._now - self._days(0, 30)
        shape: Document
        shape, blocks = self._random.choice(
            [
                ({"status": "pending", "created_at": long_ago}, True),
                ({"status": "in_progress", "created_at": recently}, True),
                ({"status": "dismissed", "created_at": recently}, True),
                ({"status": "completed", "created_at": long_ago, "completed_at": recently}, True),
                ({"status": "completed", "created_at": long_ago, "completed_at": long_ago}, False),
                ({"status": "dismissed", "created_at": long_ago}, False),
                ({"status": "pending", "created_at": recently, "type": "survey"}, False),
            ]
        )
        by_parent = self._chance(0.3)
        about = self._spelt(parent if by_parent else account)
        of = {"account_id": self._id(), "metadata": {"parent_account": about}} if by_parent else {"account_id": about}
        self.pulses.append({"type": "review_request", **shape, **of})
        return blocks

    def _spelt(self, account: ObjectId) -> ObjectId | str:
        return str(account) if self._chance(TEXT_ID) else account

    def _kind(self) -> str:
        return self._random.choice(MANAGED if self._chance(OF_MANAGED_KIND) else OTHERS)

    def _days(self, least: float, most: float) -> timedelta:
        return timedelta(seconds=int(self._random.uniform(least, most) * 86_400))

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _id(self) -> ObjectId:
        return ObjectId(f"{next(self._numbers):024x}")
