"""Why an agency is, or is not, asked for a review."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from models import account, pulse, subscription
from models.database import Document, value_at
from models.pulse import Agency
from queue_manager.core.clock import capped_sum
from queue_manager.core.wording import sentence, when
from queue_manager.explanation import DispatchState, Explanation, TimelineEvent
from services.item_explanation import ItemExplainer, StateText

if TYPE_CHECKING:
    from services.review_requests import ReviewRequests


def explain(requests: ReviewRequests, id: str, dispatch: DispatchState) -> list[Explanation]:
    """Explain the agencies that an id names: a parent account, or the account of an agency that was asked before."""
    named = Agency(account_id=id, parent_account=id, subscription_ids=[], oldest_subscription=dispatch.now)
    asked = pulse.of_agency(named)
    parents = [value_at(one, "metadata.parent_account") for one in asked]
    accounts = {spelling for one in (id, *parents) for spelling in account.spellings(one)}
    agencies = list(subscription.agencies(requests.product_types, accounts=list(accounts)))
    if not agencies and asked:
        agencies = [named]
    return [_AgencyExplainer(requests, agency, dispatch).explanation() for agency in agencies]


class _AgencyExplainer(ItemExplainer):
    def __init__(self, requests: ReviewRequests, agency: Agency, dispatch: DispatchState) -> None:
        self._requests, self._agency, self._item = requests, agency, requests.due_of(agency)
        self._asked = pulse.of_agency(agency)
        due_at = capped_sum(agency.oldest_subscription, requests.after)
        super().__init__(
            dispatch,
            str(agency.parent_account),
            lease_id=self._item.id,
            title="" if agency.account_id is None else str(agency.account_id),
            due_at=max([due_at, *map(self._window_end, self._asked)]) if agency.subscription_ids else None,
        )

    def past(self) -> Iterable[TimelineEvent]:
        return map(_request, self._asked)

    def answer(self) -> StateText:
        requests, agency, now = self._requests, self._agency, self.now
        if not requests.product_types:
            return "not asked", "warn", "MANAGED_SUBSCRIPTIONS names no product type, so nobody is asked for a review."
        if (due_at := self.due_at) is None:
            answer = "It has no active managed subscription, so it is not asked for a review."
            return "not a customer", "neutral", answer
        for one in self._asked:
            ends_at = self._window_end(one)
            if one.get("status") in pulse.OPEN:
                return "asked", "good", sentence(f"a review request has been open since {when(one['created_at'], now)}")
            if ends_at > now:
                asked = f"it was asked at {when(one['created_at'], now)}"
                return "asked", "good", sentence(asked, f"the next request may come at {when(ends_at, now)}")
        customer = f"its oldest managed subscription began at {when(agency.oldest_subscription, now)}"
        if agency.account_id is None:
            return "not asked", "bad", sentence(customer, "that subscription has no usable account, so nobody is asked")
        if due_at > now:
            asked_at = f"it is asked {requests.after.days} days later, at {when(due_at, now)}"
            return "not due", "neutral", sentence(customer, asked_at, self.dispatch.scan(due_at))
        lease = self.lease_of(requests, self._item)
        return self.due_state(lease, f"due to be asked since {when(due_at, now)}")

    def _window_end(self, request: Document) -> datetime:
        """Return when the time after a request ends in which no other one is created."""
        found = (request.get(name) for name in ("created_at", "completed_at"))
        return capped_sum(max(moment for moment in found if isinstance(moment, datetime)), self._requests.window)


def _request(request: Document) -> TimelineEvent:
    return TimelineEvent(at=request["created_at"], event="Asked for a review", detail=f"status {request.get('status')}")
