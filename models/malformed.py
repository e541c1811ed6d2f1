"""Documents of our own collections that another program has made unreadable: left out, and logged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from models.database import Document
from models.document_id import shown_id
from queue_manager.core.errors import PermanentError, typed_reason
from queue_manager.core.log import get_logger

T = TypeVar("T")
V = TypeVar("V")

MALFORMED_LOG_INTERVAL = 600.0  # seconds after which the same document is logged again
MAX_NAMED = 1_000  # documents that are remembered
MAX_ID_LENGTH = 200  # characters that are shown
READ_ERRORS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, PermanentError)
"""Errors of reading a malformed document."""
_named: dict[tuple[str, str], float] = {}

log = get_logger("QM/database")


def readable(found: Iterable[Document], read: Callable[[Document], T], *, of: str) -> Iterator[T]:
    """Yield what `read` returns for documents of a collection, without those for which it fails."""
    for document in found:
        try:
            value = read(document)
        except READ_ERRORS as error:
            _name(of, document, error)
        else:
            yield value


def readable_one(found: Document | None, read: Callable[[Document], T], *, of: str) -> T | None:
    """Return what `read` returns for a document; `None` if there is none, or if it fails."""
    return next(readable([] if found is None else [found], read, of=of), None)


def typed(document: Document, name: str, *kinds: type[V]) -> V:
    """Return a field. Raises TypeError if it has none of these types, KeyError if it is missing."""
    value: Any = document[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be {expected}, and is {type(value).__name__}")
    return value


def _name(of: str, document: Document, error: Exception) -> None:
    id, now = _shown_id(document), time.monotonic()
    if now - _named.get((of, id), -MALFORMED_LOG_INTERVAL) < MALFORMED_LOG_INTERVAL:
        return
    if len(_named) >= MAX_NAMED:
        _named.clear()
    _named[of, id] = now
    log.warning(
        "A malformed document is left out: correct or delete it", collection=of, id=id, error=typed_reason(error)
    )


def _shown_id(document: Document) -> str:
    return shown_id(document.get("_id"))[:MAX_ID_LENGTH]
