"""The agencies of `review_requests` as people see them: those that the next scan asks for a review.

They come by their parent account, a text or an ObjectId, which is also their id. One whose request could not be created
is due again, so that none is ever stuck or failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from models import account, subscription
from models.listing import Position
from models.subscription import Agency
from services.due_work import DueItem
from services.items import Item, Listed, State
from services.review_requests import ReviewRequests, review_requests, sent_to

COUNTED = 10_000


@dataclass(frozen=True, kw_only=True)
class EligibleAgencies(Listed):
    requests: ReviewRequests

    def items(self, state: State, *, after: Position | None = None, newest_first: bool = True) -> Iterator[Item]:
        if state != "due":
            return
        last = after[0] if after else None
        pages = subscription.accounts(self.requests.product_types, after=last, is_descending=newest_first)
        for accounts in pages:
            found = {str(agency.parent_account): agency for agency in self._eligible(accounts)}
            for one in accounts:
                if (agency := found.get(str(one))) is not None:
                    yield self._item(agency)

    def _item(self, agency: Agency) -> Item:
        due_at = agency.oldest_subscription + self.requests.after
        return Item(
            id=str(agency.parent_account),
            title="" if agency.account_id is None else str(agency.account_id),
            state="due",
            position=(agency.parent_account,),
            due_at=due_at,
            since=due_at,
            reason=None if agency.account_id is not None else "its oldest subscription names no account",
        )

    def take(self, ids: Sequence[str]) -> list[DueItem]:
        """Return those of `ids` that are eligible now. There is nothing to hold: the insert asks whether one blocks."""
        accounts = [spelling for id in ids for spelling in account.spellings(id)]
        return [sent_to(agency) for agency in self._eligible(accounts) if agency.account_id is not None]

    def has(self, id: str) -> bool:
        return subscription.has_managed(self.requests.product_types, account.spellings(id))

    def _eligible(self, accounts: Sequence[Any]) -> Iterator[Agency]:
        now = self.requests.clock()
        return subscription.eligible(
            self.requests.product_types,
            until=now - self.requests.after,
            asked_since=now - self.requests.window,
            accounts=accounts,
        )


def standing() -> dict[str, float]:
    """Return `{due, stuck, failed, lag_seconds}` of the agencies: `due` counts no further than `COUNTED`.

    It reads every managed subscription while few are due, so it is nothing to be asked every second.
    """
    agencies = eligible_agencies()
    now = agencies.requests.clock()
    due = [item.due_at or now for item in islice(agencies.items("due"), COUNTED)]
    lag = max(((now - at).total_seconds() for at in due), default=0.0)
    return {"due": len(due), "stuck": 0, "failed": 0, "lag_seconds": lag}


def eligible_agencies() -> EligibleAgencies:
    """Return the agencies of this process."""
    return EligibleAgencies(requests=review_requests())
