"""The items of a system: a page of those in one state, their number, and retries by an operator."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from bson import json_util

from models.database import server_now
from models.document_id import read_id, shown_id
from queue_manager.core.errors import AppError, InvalidField, NotFound, PermanentError
from queue_manager.core.json_types import Count
from queue_manager.core.log import get_logger
from queue_manager.items import Item, Listed, Position, State
from queue_manager.operations import cursors
from queue_manager.operations.system_schemas import MAX_RETRIED, Items, RetriedItems, Sent
from queue_manager.server_calls import MONGODB_CALL_TIMEOUT, mongodb
from queue_manager.system import System
from services.audit import Actor, recorded

MAX_SEARCHED = 5_000  # items, also of other states, that one page reads; the next page starts after them
MAX_COUNTED = 20_000  # items that match
SEARCH_TIMEOUT = 5.0  # seconds in which matching items are searched among those of other states
MAX_DOCUMENT_LENGTH = 1024 * 1024  # characters
_JSON_ID = re.compile(r'(?P<collection>(?:\w+:)?)(?P<json>["{].*)', re.DOTALL)

log = get_logger("QM/items")


class DocumentTooLarge(AppError):
    """A document is too large to be shown."""


def item_page(
    system: System,
    state: State,
    *,
    search: str | None,
    cursor: str | None,
    limit: int,
    order: Literal["newest", "oldest"],
) -> Items:
    """Return a page of the items in a state. It reads 5,000 items of any state, so it may be short or empty.

    Raises:
        NotFound: the system lists no items.
        InvalidField: the cursor is invalid.
        Unavailable: a server does not answer.
    """
    listed = system.open_items()
    of = f"{system.name} {state} {order}"
    after = cursors.decode(cursor, of=of)
    with mongodb(), cursors.checked():
        walk = listed.read(state, after=after, newest_first=order == "newest")
        shown, last = _page(walk, search, limit)
        now = server_now()
    return Items(items=shown, cursor=cursors.encode(last, of=of), server_time=now)


def _page(walk: Iterator[Item | Position], search: str | None, limit: int) -> tuple[list[Item], Position | None]:
    """Return a page, and the position after which the next one begins, `None` at the end."""
    shown: list[Item] = []
    last: Position | None = None
    for number, one in enumerate(walk):
        if len(shown) == limit or number == MAX_SEARCHED:
            return shown, last
        if isinstance(one, Item):
            shown += [one] if matches(one, search) else []
            last = one.position
        else:
            last = one
    return shown, None


def count_items(system: System, state: State, search: str | None = None) -> Count:
    """Count the items in a state, up to 20,000, for at most 5 s. Raises like `item_page`."""
    ids, is_complete = _matching(system.open_items(), state, search)
    return Count(count=len(ids), is_complete=is_complete)


def item_document(system: System, id: str) -> str:
    """Return an `ItemDocument` as JSON: the document as it is stored, in relaxed extended JSON.

    Raises:
        NotFound: there is no such item, or the system lists none.
        DocumentTooLarge: it has more than 1 MiB as JSON.
        Unavailable: a server does not answer.
    """
    listed = system.open_items()
    with mongodb():
        document = listed.document(id)
    if document is None:
        raise no_item(id)
    text = json_util.dumps({"document": document}, json_options=json_util.RELAXED_JSON_OPTIONS)
    if len(text) > MAX_DOCUMENT_LENGTH:
        raise DocumentTooLarge(f"The document has more than {MAX_DOCUMENT_LENGTH} characters as JSON")
    return text


def matches(item: Item, search: str | None) -> bool:
    """Return True if a text is in the id, the title or the reason, ignoring case."""
    if not search:
        return True
    wanted = search.lower()
    texts = (item.id, item.title, item.reason or "")
    return any(wanted in text.lower() for text in texts) or wanted in _without_escapes(item.id).lower()


def _without_escapes(id: str) -> str:
    """Return an id as people write it: a text without the escapes of its JSON, a UUID with hyphens."""
    if found := _JSON_ID.fullmatch(id):  # it is extended JSON, unless a system of its own scan has such ids
        with suppress(PermanentError):
            return found["collection"] + shown_id(read_id(found["json"], field="id"))
    return id


def retry_items(system: System, body: RetriedItems, actor: Actor) -> Sent:
    """Send the tasks of the items of `ids`, or of all that match, at most 1,000. Raises like `item_page`."""
    from tasks.retry import retry  # imported here, because it takes a second

    if (body.ids is None) == (body.state is None):
        raise InvalidField("state", "exactly one of state and ids is required")
    listed = system.open_items()
    matching = _matching(listed, body.state, body.search)[0] if body.state else list(dict.fromkeys(body.ids or []))
    ids, selected = matching[:MAX_RETRIED], {"state": body.state, "search": body.search} if body.state else None
    with recorded(actor, "retry", system=system.name, filter=selected, ids=ids, total=len(matching)) as action:
        action.succeeded([listed.id_of(item) for item in retry(system, listed, ids)])
    sent = Sent(sent=len(action.ids), of=len(matching))
    log.info("Items are retried by an operator", system=system.name, state=body.state or "any", **dict(sent))
    return sent


def _matching(listed: Listed, state: State, search: str | None) -> tuple[list[str], bool]:
    """Return the ids of the items that match, the oldest first, and True if these are all.

    Retried items that fail again are the newest: those that one request cannot send come first in the next one.
    """
    ids: dict[str, None] = {}
    ends_at = time.monotonic() + SEARCH_TIMEOUT
    with mongodb(SEARCH_TIMEOUT + MONGODB_CALL_TIMEOUT):
        for one in listed.read(state, newest_first=False):
            if len(ids) == MAX_COUNTED or time.monotonic() >= ends_at:
                return list(ids), False
            if isinstance(one, Item) and matches(one, search):
                ids[one.id] = None
    return list(ids), True


def no_item(id: str) -> NotFound:
    return NotFound(f"There is no item {id!r:.100}", field="id")
