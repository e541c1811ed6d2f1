"""Lists of due documents by state: what they read, and their order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, ObjectId

from models.database import client, collection
from models.document_id import id_text
from models.listing import NoPosition
from queue_manager import leases
from queue_manager.core.clock import hours, milliseconds, minutes, seconds
from queue_manager.core.errors import InvalidField
from queue_manager.core.json_types import Count
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from queue_manager.health_rules import Rule
from queue_manager.items import DueItem, Item, State
from queue_manager.operations import cursors
from queue_manager.operations import items as operations
from queue_manager.operations.system_schemas import Items
from services.due_documents import listing
from services.due_documents.listing import DocumentList
from services.due_documents.stats import stats
from services.due_documents.work import DocumentWork
from tests.models.test_due_at_scale import profile
from tests.odd_ids import ODD_IDS
from tests.rooms import T0, AgingClock, scan
from tests.services.test_due_documents import declare, make_account, work_on

pytestmark = pytest.mark.usefixtures("clean")

LEASED: tuple[State, ...] = ("in-progress", "stuck")
DUE, IN_FLIGHT, STUCK, PAGE = 500_000, 20_000, 3, 50
OTHERS = 100  # documents that the server examines for itself meanwhile


def lose(work: DocumentWork, item: DueItem) -> None:
    """Have the lease of an item end without a result."""
    work.renew([item])
    with connect(settings().redis_url) as server:
        ended = server.time()[0] * 1000 - milliseconds(seconds(30))
        server.zadd(f"qm:lease:{work.leases.system}:running", {item.lease: ended})


def accounts(count: int, *, every: timedelta) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"status": "trial", "trial_ends_at": T0 - minutes(5) - every * number}


def examined(profiled: list[dict[str, Any]]) -> int:
    return sum(one.get("docsExamined", 0) for one in profiled)


def five_leased(clock: AgingClock) -> tuple[DocumentWork, dict[State, list[str]]]:
    """Dispatch five of the accounts and lose three; return the ids by state."""
    work = work_on(declare(), clock, batch=5, max_queue=5)
    items = scan(work)
    assert len(items) == 5
    for item in items[:3]:
        lose(work, item)
    return work, {"stuck": [item.args[0] for item in items[:3]], "in-progress": [item.args[0] for item in items[3:]]}


@pytest.mark.parametrize("state", LEASED)
def test_a_list_reads_only_documents_in_its_state(clock: AgingClock, state: State) -> None:
    collection("accounts").insert_many(accounts(600, every=seconds(1)))
    work, leased = five_leased(clock)
    listed, ids = DocumentList(work=work), leased[state]

    with profile("accounts") as page:
        found = [item.id for item in listed.items(state, newest_first=False)]
    with profile("accounts") as retry:
        matching = operations._matching(listed, state, None)

    assert (found, matching) == (ids, (ids, True))
    assert [examined(one) for one in (page, retry)] == [len(ids)] * 2


def test_list_of_due_documents_does_not_read_upcoming_ones(clock: AgingClock) -> None:
    work = work_on(declare(every=minutes(1)), clock)
    assert work.ahead > seconds(10)
    for number in range(20):
        make_account(T0 + seconds(number + 1))
    due = make_account(T0 - minutes(5))
    with profile("accounts") as page:
        (found,) = DocumentList(work=work).items("due")
    assert (found.id, examined(page)) == (str(due), 1)


@pytest.fixture
def every_state(clock: AgingClock, monkeypatch: pytest.MonkeyPatch) -> DocumentWork:
    """Accounts in every state: of one time, of several times, ahead, changed, deleted, cooling, just done.

    None leaves its state by itself, however long the test takes.
    """
    monkeypatch.setattr(leases, "DONE_FOR", minutes(10))
    work = replace(work_on(declare(every=minutes(1)), clock, ahead=10), ahead=minutes(10))
    ids: list[Any] = [make_account(_id=id) for id in [None, *(ObjectId() for _ in range(6)), *ODD_IDS]]
    ids += [make_account(T0 - seconds(number)) for number in (1, 1, 1, 2, 3, 5, 8)]
    ids += [make_account(T0 + minutes(number)) for number in (5, 5, 10)]
    items = scan(work)
    assert len(items) == len(ids)
    for number, item in enumerate(items):
        if number % 3 == 0:
            lose(work, item)
        elif number % 3 == 1:
            work.renew([item])
    work.give_up(items[2], error="boom")
    with work.attempts([items[7]]) as attempts:
        attempts.done.add(items[7].lease)  # its write was undone, for example
    moved = {"$set": {"trial_ends_at": T0 - seconds(30)}}
    for change in (items[3:5], items[-6:-4]):  # one of them is stuck, one in progress
        keys = list(DocumentList(work=work)._keys([item.args[0] for item in change]))
        assert collection("accounts").update_many({"_id": {"$in": keys}}, moved).modified_count == 2
    (key,) = DocumentList(work=work)._keys([items[6].args[0]])
    collection("accounts").delete_one({"_id": key})
    make_account()
    work.leases.take(["not an id@5", "5@"])  # tasks that were sent with malformed arguments, or without a date
    return work


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("state", LEASED)
def test_order_and_pages_are_those_of_the_index(
    every_state: DocumentWork, state: State, newest_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = DocumentList(work=every_state)

    def shown(after: Item | None = None) -> list[tuple[Any, ...]]:
        position = None if after is None else after.position
        found = listed.items(state, after=position, newest_first=newest_first)
        return [(item.id, item.due_at, item.next_at) for item in found]

    for leases_per_read in (2, listing.LEASES_PER_READ):
        monkeypatch.setattr(listing, "LEASES_PER_READ", leases_per_read)
        monkeypatch.setattr(listing, "MAX_LISTED_LEASES", 0)  # walks the index
        items = list(listed.items(state, newest_first=newest_first))
        pages = [shown(after) for after in (None, *items)]
        monkeypatch.setattr(listing, "MAX_LISTED_LEASES", 1_000)
        assert len(items) > 6
        assert [shown(after) for after in (None, *items)] == pages


def test_failures_without_a_lease_are_not_read(clock: AgingClock) -> None:
    work = work_on(declare(), clock)
    ids = collection("accounts").insert_many(accounts(301, every=seconds(1))).inserted_ids
    for item in scan(work)[:1]:
        work.give_up(item, error="boom")
    old = {"due_at": T0, "error": "boom", "failures": 1, "failed_at": T0 - hours(48), "retry_at": T0 - hours(47)}
    collection("qm_failed_items").insert_many(
        [{"_id": {"system": work.system.name, "id": id}, **old} for id in ids if str(id) != item.args[0]]
    )
    with profile("qm_failed_items") as read:
        found = [one.id for one in DocumentList(work=work).items("failed")]
    assert found == [item.args[0]]
    assert examined(read) == 1


def test_an_item_with_the_longest_cool_down_is_listed_as_failed(clock: AgingClock) -> None:
    work = work_on(declare(), clock)
    collection("accounts").insert_one({"status": "trial", "trial_ends_at": T0})
    for _ in range(7):
        clock.advance(hours(1))
        (item,) = scan(work)
        work.give_up(item, error="boom")
    (failed,) = DocumentList(work=work).items("failed")
    assert failed.next_at == clock.now + hours(1)


def test_an_item_is_failed_until_it_is_taken_again(clock: AgingClock) -> None:
    work = work_on(declare(), clock)
    listed = DocumentList(work=work)
    id = collection("accounts").insert_one({"status": "trial", "trial_ends_at": T0}).inserted_id
    (item,) = scan(work)
    work.give_up(item, error="boom")
    (failed,) = listed.items("failed")
    assert failed.next_at == clock.now + minutes(1)
    clock.advance(minutes(2))  # while the system is paused, for example

    (failed,) = listed.items("failed")
    assert (failed.id, failed.reason, failed.next_at) == (id_text(id), "boom", None)
    assert list(listed.items("due")) == []
    found = stats(work)
    numbers = {name: found.numbers[name] for name in ("pending", "cooling_off", "lag_seconds")}
    assert numbers == {"pending": 0, "cooling_off": 1, "lag_seconds": 0}
    assert [*found.problems] == [Rule.FAILED_ITEMS]

    assert [one.lease for one in scan(work)] == [item.lease]
    assert list(listed.items("failed")) == []


def test_a_page_ends_after_so_many_documents_of_other_states(
    clock: AgingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_SEARCHED", 40)
    monkeypatch.setattr(operations, "MAX_COUNTED", 40)
    monkeypatch.setattr(listing, "LIST_PAGE_SIZE", 10)
    work = work_on(declare(), clock)
    collection("accounts").insert_many(accounts(60, every=seconds(1)))
    work.leases.release([item.lease for item in scan(work)], cool_down=hours(1))
    due = make_account(T0 - hours(1))
    system = replace(work.system, items=lambda: DocumentList(work=work))

    def page(cursor: str | None) -> Items:
        return operations.item_page(system, "due", search=None, cursor=cursor, limit=PAGE, order="newest")

    first = page(None)
    assert first.items == []
    assert first.cursor is not None
    second = page(first.cursor)
    assert ([item.id for item in second.items], second.cursor) == ([str(due)], None)
    assert operations.count_items(system, "due") == Count(count=1, is_complete=True)
    assert operations._matching(system.open_items(), "due", None) == ([str(due)], True)
    monkeypatch.setattr(operations, "SEARCH_TIMEOUT", 0.0)
    assert operations.count_items(system, "due") == Count(count=0, is_complete=False)


@pytest.mark.parametrize("after", [(T0,), (T0, 1, 2), ("a", 1)])
def test_cursor_of_another_list_is_refused(clock: AgingClock, after: tuple[Any, ...]) -> None:
    with pytest.raises(NoPosition):
        list(DocumentList(work=work_on(declare(), clock)).items("stuck", after=after))


@pytest.mark.parametrize("id", [-(2**63), 2**63 - 1])
def test_cursor_may_have_every_number_that_mongodb_stores(id: int) -> None:
    assert cursors.decode(cursors.encode([T0, id], of="accounts"), of="accounts") == (T0, id)


@pytest.mark.parametrize("id", [-(2**63) - 1, 2**63])
def test_cursor_with_a_number_that_mongodb_does_not_store_is_refused(id: int) -> None:
    with pytest.raises(InvalidField, match="cursor"):
        cursors.decode(cursors.encode([T0, id], of="accounts"), of="accounts")


@pytest.fixture
def own_accounts() -> Iterator[None]:
    """Drop the accounts at the end: to delete many one by one would take the next test a minute."""
    yield
    collection("accounts").drop()


def scanned() -> int:
    """Return how many documents the server has examined; its profile is too small for commands with many ids."""
    return int(client().admin.command("serverStatus")["metrics"]["queryExecutor"]["scannedObjects"])


@pytest.mark.scale
@pytest.mark.usefixtures("own_accounts")
@pytest.mark.parametrize(("every", "spread"), [(seconds(0.01), "of different times"), (seconds(0), "of one time")])
def test_lists_read_only_what_they_show_at_scale(
    clock: AgingClock, every: timedelta, spread: str, figure: Callable[[str], None]
) -> None:
    documents = accounts(DUE, every=every)
    while some := list(islice(documents, 20_000)):
        collection("accounts").insert_many(some, ordered=False)
    work = work_on(declare(), clock, batch=1_000, max_queue=IN_FLIGHT)
    for item in scan(work)[:STUCK]:
        lose(work, item)
    listed = DocumentList(work=work)

    def measure(read: Callable[[], Any], name: str) -> tuple[Any, int]:
        before, began = scanned(), time.monotonic()
        result = read()
        took, documents = time.monotonic() - began, scanned() - before
        figure(f"{DUE:,} due {spread}, {name}: {took * 1000:.0f} ms, {documents:,} documents examined")
        return result, documents

    def page(state: State, newest_first: bool) -> tuple[int, int]:
        items, read = measure(
            lambda: list(islice(listed.items(state, newest_first=newest_first), PAGE)),
            f"{state} {'newest' if newest_first else 'oldest'} first",
        )
        return len(items), read

    (ids, is_complete), read = measure(lambda: operations._matching(listed, "stuck", None), "all stuck")
    assert (len(ids), is_complete) == (STUCK, True)
    assert read <= STUCK + OTHERS
    for newest_first in (True, False):
        length, read = page("stuck", newest_first)
        assert length == STUCK
        assert read <= STUCK + OTHERS
        length, read = page("in-progress", newest_first)
        assert length == PAGE
        assert read <= listing.LEASES_PER_READ + OTHERS
        length, read = page("due", newest_first)
        assert length == PAGE
        assert read <= IN_FLIGHT + 2 * listing.LIST_PAGE_SIZE + OTHERS
    (ids, is_complete), read = measure(lambda: operations._matching(listed, "in-progress", None), "all in-progress")
    assert (len(ids), is_complete) == (IN_FLIGHT - STUCK, True)
    assert read <= IN_FLIGHT + OTHERS


@pytest.mark.parametrize("id", ["a b", "naïve/ü", "5", "65b9f0a2c3d4e5f6a7b8c9d0", UUID(int=5)])
def test_id_is_also_accepted_without_the_quotation_marks_of_json(clock: AgingClock, id: Any) -> None:
    stored = Binary.from_uuid(id) if isinstance(id, UUID) else id
    make_account(_id=stored)
    listed, named = DocumentList(work=work_on(declare(), clock)), str(id)

    assert listed.has(named)
    assert (listed.document(named) or {})["_id"] == stored
    assert [item.args[0] for item in listed.take([named])] == [id_text(stored)]


def test_id_that_the_list_shows_is_preferred_to_other_readings(clock: AgingClock) -> None:
    for id in (5, "5"):
        make_account(_id=id)
    listed = DocumentList(work=work_on(declare(), clock))

    assert [item.args[0] for item in listed.take(["5"])] == [id_text(5)]
    assert not listed.has("\ud800")
