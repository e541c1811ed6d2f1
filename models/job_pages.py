"""Pages of jobs: of a name, in a state, with a text in them, in any order, each from where the last one ended.

Guarantee: a page without a search reads its own jobs and a few keys besides, however many jobs there are: whatever is
asked for is a range of one index, or of its parts for the five states, which the server merges in order. A search
reads on in the same order until its page is full, or it has looked at `MOST_LOOKED_AT` jobs or for `LONGEST_LOOK`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING

from models.database import Document
from models.job import OURS, State, jobs

AT_ONCE = 500  # jobs that a search looks at in one question, so that it can stop in time
MOST_LOOKED_AT = 20_000
LONGEST_LOOK = 0.1  # seconds
NOT_SHOWN = {"text": 0}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A job's place in a list: after it the next page begins."""

    id: ObjectId
    value: Any = None
    """Of the field that the list is sorted by, unless that is the id."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which jobs, in which order. Jobs that are equal in `by` are in the order of their ids."""

    name: str | None = None
    state: State | None = None
    text: str | None = None
    """A regular expression for what is searched."""
    by: str = "_id"
    """`_id`, which is the order in which they were made, or one of `job.SORTED_BY`."""
    is_descending: bool = True
    after: Place | None = None

    @property
    def query(self) -> Document:
        if self._is_of_all:
            return OURS
        states = [*State] if self.state is None else [self.state]
        return {"state": {"$in": states}, **OURS} | ({} if self.name is None else {"name": self.name})

    @property
    def index(self) -> str:
        if self._is_of_all:
            return "_id_"
        of = "jobs_in_a_state" if self.name is None else "jobs_of_a_name"
        return of if self.by == "_id" else f"{of}_by_{self.by}"

    @property
    def _is_of_all(self) -> bool:
        return self.name is None and self.state is None and self.by == "_id"

    def ranges(self) -> Iterator[tuple[Document, dict[str, int]]]:
        """Give the queries, each with its order, whose results one after another are all that comes after the place."""
        way, beyond = (DESCENDING, "$lt") if self.is_descending else (ASCENDING, "$gt")
        order = dict.fromkeys((self.by, "_id"), way)
        if self.after is None:
            yield self.query, order
        elif self.by == "_id":
            yield {**self.query, "_id": {beyond: self.after.id}}, order
        else:
            # Ordered by the value too, which is one, the server would sort in memory instead of merging.
            yield {**self.query, self.by: self.after.value, "_id": {beyond: self.after.id}}, {"_id": way}
            yield {**self.query, self.by: {beyond: self.after.value}}, order

    def place(self, job: Document) -> Place:
        return Place(id=job["_id"], value=None if self.by == "_id" else job[self.by])


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some jobs. `end`: the place after which the next page begins; `None` on the last."""

    jobs: list[Document]
    end: Place | None
    is_partial: bool = False
    """Whether a search stopped before the page was full."""


def page(asked: Asked, *, limit: int) -> Page:
    """Return `limit` jobs, or fewer on the last page or when a search took too long."""
    return _listed(asked, limit) if asked.text is None else _searched(asked, asked.text, limit)


def _listed(asked: Asked, limit: int) -> Page:
    found: list[Document] = []
    for query, order in asked.ranges():
        if left := limit + 1 - len(found):
            found += jobs().find(query, NOT_SHOWN, sort=[*order.items()], hint=asked.index, limit=left)
    return _cut(asked, found, limit)


def _searched(asked: Asked, text: str, limit: int) -> Page:
    places: list[Document] = []
    until = time.monotonic() + LONGEST_LOOK
    for looked_at in count(AT_ONCE, AT_ONCE):
        slice = _look(asked, text, limit + 1 - len(places))
        places += slice.jobs
        if slice.end is None or len(places) > limit:
            break
        if looked_at >= MOST_LOOKED_AT or time.monotonic() > until:
            return Page(jobs=_whole(places), end=slice.end, is_partial=True)
        asked = replace(asked, after=slice.end)
    found = _cut(asked, places, limit)
    return Page(jobs=_whole(found.jobs), end=found.end)


def _look(asked: Asked, text: str, limit: int) -> Page:
    """Search the next `AT_ONCE` jobs; `end` is the last of them, and `jobs` have their places alone."""
    place = {"_id": 1, asked.by: 1}
    seen = {"_id": None, "jobs": {"$sum": 1}, "last": {"$last": "$$ROOT"}}
    found: list[Document] = []
    left, last = AT_ONCE, None
    for query, order in asked.ranges():
        pipeline: list[Document] = [
            {"$match": query},
            {"$sort": order},
            {"$limit": left},
            {
                "$facet": {
                    "found": [{"$match": _with(text)}, {"$limit": limit}, {"$project": place}],
                    "seen": [{"$project": place}, {"$group": seen}],
                }
            },
        ]
        (answer,) = jobs().aggregate(pipeline, hint=asked.index)
        found += answer["found"]
        for some in answer["seen"]:  # none, when there are no jobs in the range
            left, last = left - some["jobs"], some["last"]
        if not left:
            break
    return Page(jobs=found, end=None if left or last is None else asked.place(last))


def _with(text: str) -> Document:
    """Return the condition that a job has the text in its arguments, its name or its last error."""
    matches = {"$regex": text}
    # Jobs that were stored without their text are known by the texts among their arguments.
    without = {"text": {"$exists": False}, "arguments": matches}
    return {"$or": [{"text": matches}, {"name": matches}, {"last_error": matches}, without]}


def _whole(places: list[Document]) -> list[Document]:
    """Return the jobs at these places as they are now, those that are still there."""
    whole = {job["_id"]: job for job in jobs().find({"_id": {"$in": [place["_id"] for place in places]}}, NOT_SHOWN)}
    return [whole[place["_id"]] for place in places if place["_id"] in whole]


def _cut(asked: Asked, found: list[Document], limit: int) -> Page:
    """Return a page of what was found, which is one more when there is another page."""
    shown = found[:limit]
    return Page(jobs=shown, end=asked.place(shown[-1]) if len(found) > limit else None)
