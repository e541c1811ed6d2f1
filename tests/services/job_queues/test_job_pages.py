"""Pages of jobs: every order, filter and search equals a plain read; a search stops at its time limit."""

from __future__ import annotations

import random
from typing import Any

import pytest
from bson import ObjectId

from models import job, job_pages
from models.job import JOB_SORT_FIELDS, JobState
from queue_manager.core.clock import seconds
from queue_manager.operations.jobs import JobList
from services.job_queues import InvalidJob
from services.job_queues.fields import MAX_SEARCH_TEXT_LENGTH, search_text
from tests.job_lab import Lab, listed
from tests.rooms import T0

WORDS = ["alpha", "Beta", "GAMMA", "d.e", "1.5"]


def fill(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Store jobs of three names, in all states, with few different values in each field."""
    chance = random.Random(seed)
    stored = []
    for number in range(count):
        arguments = [chance.choice(WORDS), {"number": number}]
        due = T0 + seconds(chance.randrange(5))
        one: dict[str, Any] = {"_id": ObjectId(), "name": chance.choice(["mail", "report", "sms"])}
        one |= {
            "arguments": arguments,
            "text": search_text(arguments),
            "state": chance.choice([*JobState]).value,
            "due": due,
        }
        one |= {"created": T0, "updated": T0 + seconds(chance.randrange(5)), "priority": chance.randrange(-2, 3)}
        one |= {"attempts": chance.randrange(4), "key": str(number), "history": []}
        if one["state"] == JobState.EXECUTING:
            one["name"] = f"n{number}"  # one of a name
        stored.append(one)
    job.jobs().insert_many(stored)
    return stored


@pytest.mark.parametrize("sort", ["created", *JOB_SORT_FIELDS])
@pytest.mark.parametrize("is_descending", [True, False])
@pytest.mark.usefixtures("clean")
def test_pages_contain_all_matching_jobs_in_order(sort: str, is_descending: bool) -> None:
    every = fill(200)
    field = "_id" if sort == "created" else sort
    every.sort(key=lambda one: (one[field], one["_id"]), reverse=is_descending)
    for name in (None, "mail", "none"):
        for state in (None, "pending", "success"):
            for search in (None, "BETA", "E", "nothing"):
                wanted = [
                    one["_id"]
                    for one in every
                    if name in (None, one["name"])
                    and state in (None, one["state"])
                    and (search is None or search.lower() in f"{one['text']} {one['name']}".lower())
                ]
                asked = {"name": name, "state": state, "search": search, "sort": sort, "is_descending": is_descending}
                assert listed(7, **asked) == wanted, asked


@pytest.mark.parametrize("sort", ["created", *JOB_SORT_FIELDS])
@pytest.mark.usefixtures("clean")
def test_a_search_that_reaches_its_time_limit_continues_at_its_cursor(
    sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(300)
    monkeypatch.setattr(job_pages, "SEARCH_BATCH_SIZE", 7)
    monkeypatch.setattr(job_pages, "MAX_SEARCHED_JOBS", 20)
    page = JobList(search="nothing", sort=sort).page(None, 50)
    assert (page.jobs, page.is_partial) == ([], True)
    assert page.cursor is not None
    whole = listed(300, sort=sort)
    hits = [id for id in whole if "beta" in (job.jobs().find_one(id) or {})["text"].lower()]
    assert listed(5, search="beta", sort=sort) == hits


def test_jobs_stored_without_search_text_are_found_by_text_arguments_and_names(lab: Lab) -> None:
    id = ObjectId(lab.run("mail", "An Address", {"city": "Ulm"}))
    job.jobs().update_one({"_id": id}, {"$unset": {"text": ""}})
    for search, found in (("an addr", [id]), ("MAIL", [id]), ("ulm", [])):
        assert listed(50, search=search) == found


def test_the_beginning_of_the_arguments_is_searched(lab: Lab) -> None:
    lab.run("mail", "x" * (MAX_SEARCH_TEXT_LENGTH - 100) + "early" + "x" * 200 + "late")
    assert len(listed(50, search="early")) == 1
    assert listed(50, search="late") == []


@pytest.mark.parametrize("search", ["\ud800", "x" * 257])
@pytest.mark.usefixtures("clean")
def test_invalid_search_is_refused(search: str) -> None:
    with pytest.raises(InvalidJob, match="search"):
        listed(50, search=search)
