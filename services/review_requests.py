"""Review requests: an agency with an active managed subscription for a month is asked for a review.

What is due: agencies whose oldest managed subscription is 30 days old and that no request blocks.
Guarantee: at most one open request for an account and its parent, and none within 31 days of the last.
Options: `MANAGED_SUBSCRIPTIONS` (must be set), `REVIEW_AFTER_DAYS` (30), `REVIEW_WINDOW_DAYS` + `REVIEW_BUFFER_DAYS`
(30 + 1), `SUBSCRIPTIONS_COLLECTION`, `PULSES_COLLECTION`.
Emits: a pulse of type `review_request`, status `pending`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import islice
from typing import Any

from bson import ObjectId

from models import account, database, pulse, subscription
from models.document_id import id_text, read_id, shown_id
from models.listing import Position, Sample
from models.pulse import Agency
from queue_manager.broker.backlog import Backlog
from queue_manager.core.cached_answer import CachedAnswer, cached_count
from queue_manager.core.clock import hours, minutes, parse_utc, to_iso
from queue_manager.core.errors import ConfigurationError, PermanentError, Unavailable
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.core.wording import many
from queue_manager.health_rules import Rule
from queue_manager.items import DueItem, Item, Listed, State
from queue_manager.system import DURATION_NAMES, System, SystemStats
from services import agency_explanation
from services.due_work import Due, DueBatch, DueWork, ItemResult, leases_of

INITIATOR = "QM/projects/reviewRequestPulse"
NEVER_MANAGED = {"site", "sites", "listing", "listings"}
MAX_DUE_COUNT = 10_000
MAX_SHOWN_SUBSCRIPTIONS = 100
DUPLICATE_REQUESTS = "review-requests: leave one open request of each account, and set the others to status `dismissed`"

log = get_logger(INITIATOR)


@dataclass(frozen=True, kw_only=True)
class ReviewRequests(DueWork, Listed):
    """Review requests: what a scan finds, `create` for the item, and the agencies as a list.

    The list has the agencies that the next scan asks, in the order of their parent account, which is also their id. An
    agency whose request could not be created is due again, so none is ever stuck or failed.
    """

    product_types: Sequence[str]
    after: timedelta
    """How long an agency must have been a customer."""
    window: timedelta
    """The time after a request in which no other one is created."""
    has_timelines: bool = True

    # Scan

    def take_due(self, measure: Callable[[], Backlog]) -> Iterator[DueBatch]:
        if not self.product_types:
            raise ConfigurationError(
                "MANAGED_SUBSCRIPTIONS names no product type, so nobody is asked for a review: it must be a list such "
                f"as seo,ads; {', '.join(sorted(NEVER_MANAGED))} in it are ignored"
            )
        yield self._left_out()
        yield from super().take_due(measure)

    def _left_out(self) -> DueBatch:
        found = subscription.unreadable(self.product_types)
        if found.count:
            ids = ", ".join(map(shown_id, found.ids))
            log.warning("Subscriptions have no readable created_at and are left out", count=found.count, ids=ids)
        return DueBatch(other_counts={"unreadable": found.count} if found.count else {})

    def find_due(self, until: datetime) -> Iterator[Due]:
        for agency in subscription.eligible(
            self.product_types, until=until - self.after, asked_since=until - self.window
        ):
            yield self.due_of(agency)

    def due_of(self, agency: Agency) -> Due:
        """Return the item for an agency."""
        id = str(agency.account_id)
        parent = None if agency.parent_account is None else str(agency.parent_account)
        subscriptions = [
            str(one) if type(one) in (ObjectId, str) else json.loads(id_text(one)) for one in agency.subscription_ids
        ]
        is_excluded = agency.account_id is None
        return Due(
            id=id,
            due_at=agency.oldest_subscription,
            args=(id, subscriptions, parent, to_iso(agency.oldest_subscription)),
            counted_as="without_account" if is_excluded else None,
            is_excluded=is_excluded,
        )

    # Items

    def lease_of(self, args: Sequence[Any]) -> str:
        account_id, _, _, oldest_subscription = args
        return super().lease_of((account_id, oldest_subscription))

    def due_ms(self, item: DueItem) -> int | None:
        """Return `None`: an agency that was asked before is due a month later, which the arguments do not contain."""
        return None

    @property
    def batch_function(self) -> Callable[[Sequence[DueItem]], Sequence[Any]] | None:
        return self.create_many

    def create(
        self, account_id: str, subscription_ids: list[Any], parent_account: str | None, oldest_subscription: str
    ) -> ItemResult:
        """Create the pulse of one agency unless another request blocks it.

        Args:
            subscription_ids: strings and ObjectIds as strings, ids of other types as extended JSON objects.

        Returns:
            `{success: true, account_id}`, or `{skipped: true, reason}`.

        Raises:
            PermanentError: an argument is malformed.
        """
        agency = _agency(account_id, subscription_ids, parent_account, oldest_subscription)
        now = self.clock()
        (status,) = pulse.create([agency], since=now - self.window, now=now)
        return self._result(agency, status)

    def create_many(self, items: Sequence[DueItem]) -> list[ItemResult | None]:
        """Create the pulses of many agencies like `create`, with one write, and one read if some are blocked.

        Returns:
            The result of each; `None` if an argument is malformed, which the item's own task reports.
        """
        read = [_readable_agency(*item.args) for item in items]
        agencies = [agency for agency in read if agency is not None]
        now = self.clock()
        statuses = pulse.create(agencies, since=now - self.window, now=now)
        results = iter([self._result(*one) for one in zip(agencies, statuses, strict=True)])
        return [None if agency is None else next(results) for agency in read]

    def _result(self, agency: Agency, status: str | None) -> ItemResult:
        if status is None:
            log.info("Review request created", account_id=agency.account_id)
            return {"success": True, "account_id": agency.account_id}
        return {"skipped": True, "reason": "Pending request exists" if status in pulse.OPEN else "Requested recently"}

    def give_up(self, item: DueItem, *, error: str) -> None:
        self.release([item])
        log.error("Review request could not be created; the next scan finds it again", account_id=item.args[0])

    # List

    def items(self, state: State, *, after: Position | None = None, newest_first: bool = True) -> Iterator[Item]:
        found = self.read(state, after=after, newest_first=newest_first)
        yield from (one for one in found if isinstance(one, Item))

    def read(
        self, state: State, *, after: Position | None = None, newest_first: bool = True
    ) -> Iterator[Item | Position]:
        if state != "due":
            return
        last = after[0] if after else None
        pages = subscription.accounts(self.product_types, after=last, is_descending=newest_first)
        for accounts in pages:
            spellings = [spelling for one in accounts for spelling in account.spellings(one)]
            found = {str(agency.parent_account): agency for agency in self._eligible(spellings)}
            twice = subscription.stored_as_id_too(self.product_types, accounts)
            for one in accounts:
                agency = found.get(str(account.stored(one)))
                yield (one,) if agency is None or one in twice else self._item(agency, position=(one,))

    def _item(self, agency: Agency, *, position: Position) -> Item:
        """Return an item without times: when an agency that was asked before fell due depends on its requests."""
        return Item(
            id=str(agency.parent_account),
            title="" if agency.account_id is None else str(agency.account_id),
            state="due",
            position=position,
            reason=None if agency.account_id is not None else "its oldest subscription has no usable account",
        )

    def take(self, ids: Sequence[str]) -> list[DueItem]:
        """Take those of `ids` that are eligible now and not in flight."""
        accounts = [spelling for id in ids for spelling in account.spellings(id)]
        return self.take_manually(list(map(self.due_of, self._eligible(accounts))))

    def id_of(self, taken: DueItem) -> str:
        _, _, parent_account, _ = taken.args
        return str(parent_account)

    def has(self, id: str) -> bool:
        return subscription.has_managed(self.product_types, account.spellings(id))

    def document(self, id: str) -> Mapping[str, Any] | None:
        """Return the active subscriptions of an agency."""
        found = subscription.of_account(account.spellings(id), limit=MAX_SHOWN_SUBSCRIPTIONS)
        return {"subscriptions": found} if found else None

    def _eligible(self, accounts: Sequence[Any]) -> Iterator[Agency]:
        now = self.clock()
        return subscription.eligible(
            self.product_types,
            until=now - self.after,
            asked_since=now - self.window,
            accounts=accounts,
        )


def review_requests() -> ReviewRequests:
    """Return the review requests with the settings of this process."""
    chosen = settings()
    return ReviewRequests(
        leases=leases_of(system.name),
        product_types=[kind for kind in chosen.managed_subscriptions if kind not in NEVER_MANAGED],
        after=timedelta(days=chosen.review_after_days),
        window=timedelta(days=chosen.review_window_days + chosen.review_buffer_days),
    )


def stats() -> SystemStats:
    """Return the number of open requests, of requests created in the last day, and of unreadable subscriptions.

    Raises Unavailable: the unreadable subscriptions could not be counted yet.
    """
    kinds = review_requests().product_types
    problems = {}
    if not kinds:
        problems[Rule.SETTINGS_WARNING] = "MANAGED_SUBSCRIPTIONS names no product type, so nobody is asked for a review"
    day_ago = database.server_now() - hours(24)
    numbers: dict[str, float] = {
        "open": cached_count("open requests", _open),
        "created_last_day": pulse.count_created(day_ago),
    }
    unreadable = _unreadable(tuple(kinds))() if kinds else Sample(count=0, ids=[])
    if unreadable is None:  # without an error, alerts of the problem below would end
        raise Unavailable("Subscriptions with an unreadable created_at could not be counted yet")
    numbers["unreadable"] = unreadable.count
    if unreadable.count:
        what, ids = many(unreadable.count, "subscription"), ", ".join(map(shown_id, unreadable.ids))
        problems[Rule.UNREADABLE_DOCUMENTS] = f"{what} without a readable created_at: {ids}"
    return SystemStats(numbers=numbers, problems=problems, counted_to=MAX_DUE_COUNT)


def _open() -> tuple[int, int]:
    count = pulse.count_open()
    return count, count


@cache
def _unreadable(product_types: tuple[str, ...]) -> CachedAnswer[Sample]:
    """Return the unreadable subscriptions; cached, because this reads the index entry of each managed subscription."""
    return CachedAnswer(lambda: subscription.unreadable(product_types))


def slow_numbers() -> dict[str, float]:
    """Return `{due, stuck, failed}` of the agencies; `due` is `MAX_DUE_COUNT` for that many or more.

    If fewer are due, this reads every managed subscription.
    """
    due = sum(1 for _ in islice(review_requests().items("due"), MAX_DUE_COUNT))
    return {"due": due, "stuck": 0, "failed": 0}


def _agency(account_id: Any, subscription_ids: Any, parent_account: Any, oldest_subscription: Any) -> Agency:
    """Read the item's arguments. Raises PermanentError, which names the one that is malformed."""
    oldest = parse_utc(oldest_subscription, field="oldest_subscription")
    if not isinstance(account_id, str) or not account_id:
        raise PermanentError(f"account_id: {account_id!r} must be a string that is not empty")
    if not isinstance(parent_account, str | None):
        raise PermanentError(f"parent_account: {parent_account!r} must be a string or null")
    if not isinstance(subscription_ids, list):
        raise PermanentError(f"subscription_ids: {subscription_ids!r} must be a list of ids")
    if oldest is None:
        raise PermanentError("oldest_subscription is missing")
    return Agency(
        account_id=account_id,
        parent_account=parent_account,
        subscription_ids=[
            account.stored(one) if isinstance(one, str) else read_id(json.dumps(one), field="subscription_ids")
            for one in subscription_ids
        ],
        oldest_subscription=oldest,
    )


def _readable_agency(*args: Any) -> Agency | None:
    """Read the item's arguments; `None` for malformed ones, which the item's own task refuses."""
    try:
        return _agency(*args)
    except PermanentError:
        return None


def _obstacles() -> list[str]:
    duplicates = pulse.obstacles()
    return [DUPLICATE_REQUESTS, *duplicates] if duplicates else []


system: System = System(
    name="review-requests",
    title="Reviews",
    description="Asks agencies for a review after a month.",
    every=minutes(5),
    flag="QM_PROJECTS",
    scan_task="tasks.review_requests.scan_eligible_agencies",
    item_task="tasks.review_requests.create_review_request",
    queue="review-request-pulse",
    trigger="projects/review-request-pulse",
    page="/reviews",
    items=review_requests,
    duration_names={**DURATION_NAMES, "wait": "Dispatched to started"},
    item_states=("due",),
    items_name="agencies",
    item_name="agency",
    explain=lambda id, dispatch: agency_explanation.explain(review_requests(), id, dispatch),
    stats=stats,
    slow_numbers=slow_numbers,
    collections=lambda: {**pulse.collections(), **subscription.collections()},
    obstacles=_obstacles,
)
