"""Pages of jobs: filtered by name, state and text, in any sort order, each starting after a position.

Guarantee: the cost of a page without a search does not depend on the number of jobs: every query is a range of one
index, or five ranges, one per state, that the server merges in order. A search continues in the same order until its
page is full, or until it has scanned `MAX_SEARCHED_JOBS` jobs or reached `SEARCH_TIMEOUT`. A page ends when its jobs
have `max_bytes`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import bson
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection

from models import listing
from models.database import Document
from models.job import IS_JOB, JobState, jobs
from models.listing import Position, position

SEARCH_BATCH_SIZE = 500  # jobs that a search scans per query, so that it can stop in time
MAX_SEARCHED_JOBS = 20_000
SEARCH_TIMEOUT = 0.1  # seconds
LOAD_BATCH_SIZE = 10  # jobs that are found and then read at once; each may have more than 1 MiB
MAX_JOB_PAGE_BYTES = 16 * 1024 * 1024  # as BSON
WITHOUT_TEXT = {"text": 0}


@dataclass(frozen=True, kw_only=True)
class JobQuery:
    """Filter and sort order of a list of jobs; ties in `sort_by` are ordered by id."""

    name: str | None = None
    state: JobState | None = None
    text: str | None = None
    """Regular expression to search for."""
    sort_by: str = "_id"
    """`_id`, which is the order of creation, or one of `job.JOB_SORT_FIELDS`."""
    is_descending: bool = True
    after: Position | None = None

    @property
    def order(self) -> list[str]:
        return ["_id"] if self.sort_by == "_id" else [self.sort_by, "_id"]

    @property
    def condition(self) -> Document:
        if self._is_of_all:
            return IS_JOB
        states = [*JobState] if self.state is None else [self.state]
        return {"state": {"$in": states}, **IS_JOB} | ({} if self.name is None else {"name": self.name})

    @property
    def index(self) -> str:
        if self._is_of_all:
            return "_id_"
        of = "jobs_in_a_state" if self.name is None else "jobs_of_a_name"
        return of if self.sort_by == "_id" else f"{of}_by_{self.sort_by}"

    @property
    def _is_of_all(self) -> bool:
        return self.name is None and self.state is None and self.sort_by == "_id"

    def ranges(self) -> Iterator[tuple[Document, list[tuple[str, int]]]]:
        """Yield the conditions of the jobs after the position, each with its sort order, as `listing.ranges` does."""
        for beyond, sort in listing.ranges(self.order, self.after, is_descending=self.is_descending):
            yield {"$and": [self.condition, beyond]}, sort


@dataclass(frozen=True, kw_only=True)
class JobPage:
    """Part of a list of jobs. `end` is the position after which the next page begins, `None` at the end."""

    jobs: list[Document]
    end: Position | None
    searched: int
    """The number of jobs that were read for the page."""
    is_partial: bool = False
    """True if the page is not full although the list continues."""


def page(query: JobQuery, *, limit: int, max_bytes: int = MAX_JOB_PAGE_BYTES) -> JobPage:
    """Return `limit` jobs; fewer on the last page, if a search reached its limits, or if they reach `max_bytes`."""
    if query.text is None:
        return _listed(query, limit, max_bytes)
    return _searched(query, query.text, limit, max_bytes)


def failures(limit: int) -> Iterator[Document]:
    """Yield `{_id, name, updated, last_error}` of the jobs that failed last, newest first.

    Other programs write to jobs, too: one that does not tell when it failed is left out.
    """
    fields = {"name": 1, "updated": 1, "last_error": 1}
    query = JobQuery(state=JobState.FAILURE, sort_by="updated")
    ((condition, sort),) = query.ranges()
    # Not a bound of the index: once a job had an array there, MongoDB would no longer read such bounds in its order.
    has_failed_at = {"$expr": {"$eq": [{"$type": "$updated"}, "date"]}}
    return jobs().find({**condition, **has_failed_at}, fields, sort=sort, hint=query.index, limit=limit)


def _listed(query: JobQuery, limit: int, max_bytes: int) -> JobPage:
    listed: list[Document] = []
    size = 0
    for found in _walk(query, limit + 1):
        if len(listed) == limit or size >= max_bytes:
            end, is_partial = position(listed[-1], query.order), len(listed) < limit
            return JobPage(jobs=listed, end=end, searched=len(listed), is_partial=is_partial)
        listed.append(_decoded(found))
        size += len(found.raw)
    return JobPage(jobs=listed, end=None, searched=len(listed))


def _walk(query: JobQuery, limit: int) -> Iterator[RawBSONDocument]:
    left = limit
    for condition, sort in query.ranges():
        if left:
            with _raw_jobs().find(condition, WITHOUT_TEXT, sort=sort, hint=query.index, limit=left) as found:
                for job in found:
                    left -= 1
                    yield job


def _searched(query: JobQuery, text: str, limit: int, max_bytes: int) -> JobPage:
    found: list[Document] = []
    searched = 0
    until = time.monotonic() + SEARCH_TIMEOUT
    while True:
        batch = _search_batch(query, text, limit + 1 - len(found))
        found += batch.jobs
        searched += batch.searched
        if batch.end is None or len(found) > limit or searched >= MAX_SEARCHED_JOBS or time.monotonic() > until:
            break
        query = replace(query, after=batch.end)
    shown = found[:limit]
    listed, loaded = _load(shown, max_bytes)
    end = batch.end if loaded == len(found) else position(found[loaded - 1], query.order)
    return JobPage(jobs=listed, end=end, searched=searched, is_partial=end is not None and loaded < limit)


def _search_batch(query: JobQuery, text: str, limit: int) -> JobPage:
    """Search the next `SEARCH_BATCH_SIZE` jobs; `end` is the last of them; `jobs` have only id and sort field."""
    projection = {"_id": 1, query.sort_by: 1}
    seen = {"_id": None, "jobs": {"$sum": 1}, "last": {"$last": "$$ROOT"}}
    found: list[Document] = []
    left, last = SEARCH_BATCH_SIZE, None
    for condition, sort in query.ranges():
        pipeline: list[Document] = [
            {"$match": condition},
            {"$sort": dict(sort)},
            {"$limit": left},
            {
                "$facet": {
                    "found": [{"$match": _text_condition(text)}, {"$limit": limit}, {"$project": projection}],
                    "seen": [{"$project": projection}, {"$group": seen}],
                }
            },
        ]
        (answer,) = jobs().aggregate(pipeline, hint=query.index)
        found += answer["found"]
        for some in answer["seen"]:  # empty if the range has no jobs
            left, last = left - some["jobs"], some["last"]
        if not left:
            break
    end = None if left or last is None else position(last, query.order)
    return JobPage(jobs=found, end=end, searched=SEARCH_BATCH_SIZE - left)


def _text_condition(text: str) -> Document:
    """Return the condition that arguments, name or last error contain the text."""
    matches = {"$regex": text}
    # Jobs stored without `text` are searched in those arguments that are texts.
    without = {"text": {"$exists": False}, "arguments": matches}
    return {"$or": [{"text": matches}, {"name": matches}, {"last_error": matches}, without]}


def _load(found: list[Document], max_bytes: int) -> tuple[list[Document], int]:
    """Return the current documents of these jobs up to `max_bytes`, and for how many jobs; deleted ones are omitted."""
    listed: list[Document] = []
    loaded = size = 0
    while loaded < len(found) and size < max_bytes:
        ids = [job["_id"] for job in found[loaded : loaded + LOAD_BATCH_SIZE]]
        current = {job["_id"]: job for job in _raw_jobs().find({"_id": {"$in": ids}}, WITHOUT_TEXT)}
        listed += [_decoded(current[id]) for id in ids if id in current]
        size += sum(len(job.raw) for job in current.values())
        loaded += len(ids)
    return listed, loaded


def _raw_jobs() -> Collection[RawBSONDocument]:
    """Return the jobs as raw BSON, so that their size is known."""
    options = jobs().codec_options
    return jobs().with_options(codec_options=options.with_options(document_class=RawBSONDocument))


def _decoded(job: RawBSONDocument) -> Document:
    return bson.decode(job.raw, jobs().codec_options)
