"""`/api/jobs`: every operation works as described, and no request causes an internal error."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from bson import ObjectId
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from dev.ports import free_port
from models import database, job_queue
from models import job as model
from models.database import server_now
from models.job import JobState
from queue_manager.core import cached_answer
from queue_manager.core.clock import hours, parse_utc, seconds, to_iso
from queue_manager.operations.cursors import encode
from queue_manager.operations.job_schemas import Job, job_as_json
from queue_manager.web.routes.jobs import endpoints
from services import job_queues
from tests.any_jobs import IMPORT, INVOICE, MODULE, PARCEL, REPORT
from tests.eventually import eventually
from tests.foreign_jobs import TEXT_ID, add_foreign_jobs, foreign_job
from tests.job_lab import end_job, start_job
from tests.pace import paced
from tests.real_servers import Servers
from tests.web.web_process import Answer, Web, answered, forked_web, shared_web

ON = {"QM_JOBS": "true", "JOBS_IMPORTS": json.dumps([MODULE])}
NOT_YET: dict[str, Any] = {"delay_seconds": 3600}
TOO_LONG = timedelta(days=3651)
MIB = 1024 * 1024
SOME_ID = ObjectId("6b033e5b2e6e6abceb1b5df0")


def forged(position: str) -> str:
    return b64encode(position.encode(), b"-_").decode()


@dataclass(frozen=True)
class Api:
    """A client that says exactly the bytes that it is told to."""

    web: Web

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return self.web.ask(method, f"/api/jobs{path}", body, **headers)

    def get(self, path: str = "") -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.ask("POST", path, body, **headers)

    def run(self, name: str = INVOICE, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Run a job, which must succeed, and return it."""
        answer = self.post("", {"name": name, "arguments": list(arguments), **options})
        assert answer.status == 201, answer.text
        job: dict[str, Any] = answer.body["job"]
        return job

    def ids(self, query: str = "") -> list[str]:
        return [job["_id"] for job in self.get(query).body["jobs"]]


@pytest.fixture(scope="session")
def served(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    return shared_web(tmp_path_factory, **ON)


@pytest.fixture
def api(clean: Servers, served: Web) -> Api:
    return Api(served)


def end(job: dict[str, Any], state: JobState) -> None:
    """Let a job that is due be executing, or end in `state`."""
    if state is JobState.EXECUTING:
        start_job(job["_id"])
    else:
        end_job(job["_id"], state)


def through(api: Api, query: str) -> list[str]:
    """Return the ids on this page and all that follow."""
    page = api.get(query).body
    ids = [job["_id"] for job in page["jobs"]]
    return ids + (through(api, f"{query.partition('&cursor')[0]}&cursor={page['cursor']}") if page["cursor"] else [])


class TestRun:
    def test_run_stores_and_returns_the_job(self, api: Api) -> None:
        answer = api.post("", {"name": INVOICE, "arguments": [42, {"a": [None, 1.5]}], "priority": 3})
        assert (answer.status, answer.headers["content-type"]) == (201, "application/json")
        job = answer.body["job"]
        assert (job["name"], job["arguments"], job["priority"]) == (INVOICE, [42, {"a": [None, 1.5]}], 3)
        assert (job["state"], job["attempts"], job["due"]) == ("pending", 0, job["created"])
        assert api.get(f"/{job['_id']}").body == {"job": job}

    def test_queue_of_the_job_is_due_at_its_time(self, api: Api) -> None:
        due = parse_utc(api.run()["due"], field="due")
        assert due is not None
        assert INVOICE in {one.id for one in job_queues.dispatch().find_due(due)}

    def test_run_accepts_a_time_or_a_delay(self, api: Api) -> None:
        at = to_iso(server_now() + seconds(90))
        assert api.run(at=at)["due"] == at
        assert api.run(at=at.replace("Z", "+00:00"))["due"] == at
        job = api.run(delay_seconds=1.5)
        assert job["due"] == to_iso(model.jobs().find_one(ObjectId(job["_id"]))["created"] + seconds(1.5))  # type: ignore[index]

    @pytest.mark.parametrize("option", ["unique", "singular"])
    def test_unique_or_singular_job_blocks_a_second(self, option: str, api: Api) -> None:
        api.run(INVOICE, 1, **{option: True})
        answer = api.post("", {"name": INVOICE, "arguments": [1], option: True})
        assert (answer.status, answer.body["error"]) == (409, "blocked")
        api.run(INVOICE, 2, **{option: True})
        api.run(INVOICE, 1)

    def test_null_options_count_as_not_given(self, api: Api) -> None:
        options = dict.fromkeys(("at", "delay_seconds", "priority", "unique", "singular", "arguments"))
        assert api.post("", {"name": INVOICE, **options}).status == 201

    def test_an_unknown_name_is_404_and_lists_the_known_ones(self, api: Api) -> None:
        answer = api.post("", {"name": "send_invoice"})
        assert (answer.status, answer.body["error"]) == (404, "not found")
        assert INVOICE in answer.body["message"]

    @pytest.mark.parametrize(
        ("members", "field"),
        [
            ({"name": None}, "name"),
            ({"name": ["x"]}, "name"),
            ({"name": "a b"}, "name"),
            ({"name": "x\0"}, "name"),
            ({"arguments": {}}, "arguments"),
            ({"arguments": "[]"}, "arguments"),
            ({"arguments": [2**63]}, "arguments"),
            ({"arguments": [-(2**63) - 1]}, "arguments"),
            ({"arguments": [{"a\0b": 1}]}, "arguments"),
            ({"arguments": ["\ud800"]}, "arguments"),
            ({"arguments": [{"\udfff": 1}]}, "arguments"),
            ({"arguments": ["x" * 600_000, "x" * 500_000]}, "arguments"),
            ({"at": "soon"}, "at"),
            ({"at": "2030-01-01T00:00:00"}, "at"),
            ({"at": 5}, "at"),
            ({"at": "0001-01-01T00:00:00+14:00"}, "at"),
            ({"at": "9999-12-31T23:59:59-14:00"}, "at"),
            ({"at": "1969-01-01T00:00:00Z"}, "at"),
            ({"at": "2030-01-01T00:00:00Z", "delay_seconds": 1}, "at"),
            ({"delay_seconds": -1}, "delay_seconds"),
            ({"delay_seconds": "1"}, "delay_seconds"),
            ({"delay_seconds": True}, "delay_seconds"),
            ({"delay_seconds": TOO_LONG.total_seconds()}, "delay_seconds"),
            ({"delay_seconds": 10**400}, "delay_seconds"),
            ({"priority": 101}, "priority"),
            ({"priority": -(10**30)}, "priority"),
            ({"priority": 1.5}, "priority"),
            ({"priority": True}, "priority"),
            ({"unique": 1}, "unique"),
            ({"singular": "true"}, "singular"),
            ({"argument": []}, "argument"),
            ({"\ud800": 1}, "?"),
            ({"x" * 100: 1}, "x" * 64),
        ],
        ids=lambda value: str(value)[:40].encode("ascii", "replace").decode(),
    )
    def test_invalid_input_is_422_with_the_field(self, members: Any, field: str, api: Api) -> None:
        answer = api.post("", {"name": INVOICE, **members})
        assert (answer.status, answer.body["error"], answer.body["field"]) == (422, "invalid", field)
        assert answer.body["message"].startswith(f"{field}: ")
        assert model.jobs().count_documents({}) == 0

    def test_nesting_is_bounded(self, api: Api) -> None:
        def nested(levels: int) -> str:
            return f'{{"name": "{INVOICE}", "arguments": [{"[" * levels}{"]" * levels}]}}'

        assert api.post("", nested(64)).status == 201
        for levels in (65, 250, 700):
            assert api.post("", nested(levels)).body["field"] == "arguments"
        assert api.post("", nested(100_000)).status == 400

    def test_numbers_that_json_cannot_express_are_returned_in_another_form(self, api: Api) -> None:
        id = ObjectId(api.run()["_id"])
        model.jobs().update_one({"_id": id}, {"$set": {"arguments": [float("inf")]}})
        (job,) = api.get().body["jobs"]
        assert job["arguments"] == [{"$numberDouble": "Infinity"}]

    @pytest.mark.parametrize(
        "body",
        [
            None,
            "",
            "{",
            "[]",
            '"x"',
            "null",
            "NaN",
            '{"name": NaN}',
            '{"arguments": [-Infinity]}',
            f'{{"name": "{INVOICE}", "arguments": [1e400]}}',
            f'{{"name": "{INVOICE}", "arguments": [{{"a": -1e400}}]}}',
            b"\xff",
            "9" * 5_000,
        ],
        ids=lambda body: repr(body)[:20],
    )
    def test_a_body_that_is_not_a_json_object_is_400(self, body: Any, api: Api) -> None:
        answer = api.post("", body)
        assert (answer.status, answer.body["error"], answer.body["field"]) == (400, "bad request", "body")

    def test_a_body_that_is_too_long_is_413(self, api: Api) -> None:
        answer = api.post("", {"name": INVOICE, "arguments": ["x" * 2 * MIB]})
        assert (answer.status, answer.body["error"]) == (413, "too large")
        assert api.post("", {"name": INVOICE, "arguments": ["x" * (MIB - 100)]}).status == 201


class TestReading:
    def test_pages_are_newest_first_and_end(self, api: Api) -> None:
        ids = [api.run(INVOICE, number)["_id"] for number in range(5)][::-1]
        first = api.get("?limit=3").body
        assert [job["_id"] for job in first["jobs"]] == ids[:3]
        rest = api.get(f"?limit=3&cursor={first['cursor']}").body
        assert ([job["_id"] for job in rest["jobs"]], rest["cursor"]) == (ids[3:], None)
        for other in ("order=asc", "sort=due"):
            refused = api.get(f"?limit=3&{other}&cursor={first['cursor']}")
            assert (refused.status, refused.body["field"]) == (422, "cursor")
        assert abs((server_now() - model.jobs().find_one(ObjectId(ids[0]))["created"]).total_seconds()) < 10  # type: ignore[index]

    def test_list_is_filtered_by_name_and_state(self, api: Api) -> None:
        invoice, report = api.run(INVOICE), api.run(REPORT, 2026)
        api.post(f"/{invoice['_id']}/cancel")
        assert api.ids(f"?name={REPORT}") == api.ids("?state=pending") == [report["_id"]]
        assert api.ids("?state=cancelled") == api.ids(f"?name={INVOICE}&state=canceled") == [invoice["_id"]]
        assert len(api.ids("?name=&state=&cursor=")) == 2

    @pytest.mark.parametrize("sort", ["created", "due", "updated", "priority", "attempts"])
    @pytest.mark.parametrize("order", ["asc", "desc"])
    def test_every_order_can_be_paged_through(self, sort: str, order: str, api: Api) -> None:
        for number in range(12):
            job = api.run(INVOICE, number, priority=number % 3, delay_seconds=number * 7 % 5 * 100)
            if number % 4 == 0:
                api.post(f"/{job['_id']}/cancel")
            if number % 4 == 1:
                api.post(f"/{job['_id']}/retry")
                end(job, JobState.SUCCESS)
        every = api.get("").body["jobs"]
        field = "_id" if sort == "created" else sort
        in_order = sorted(every, key=lambda job: (job[field], job["_id"]), reverse=order == "desc")
        for narrow in ("", f"&name={INVOICE}", "&state=pending", f"&name={INVOICE}&state=canceled", "&search=INVOICE"):
            wanted = [job["_id"] for job in in_order if "state=" not in narrow or job["state"] in narrow]
            assert through(api, f"?sort={sort}&order={order}&limit=2{narrow}") == wanted

    def test_search_covers_arguments_names_and_errors(self, api: Api) -> None:
        nested = api.run(INVOICE, "order", {"to": ["Ada@Example.com", {"n": 4711}], "by": "B, C"})["_id"]
        text = api.run(INVOICE, 'a "quoted"\ttext, .* and (a+)+$', "ÄÖ")["_id"]
        failed = api.run(REPORT, 2026)
        end_job(failed["_id"], JobState.FAILURE, error="ValueError: Too Late")
        for search, found in (
            ("ada@example.COM", [nested]),
            ('{"n":4711}', [nested]),
            ('"order", {"to": ["Ada', [nested]),  # as `queue-manager jobs list` prints it
            ('{"n": 4711}], "by": "b, c"}', [nested]),
            ("B,C", []),
            ("4711", [nested]),
            ('"quoted"\t', [text]),
            ("(A+)+$", [text]),
            (".*", [text]),
            ("ÄÖ", [text]),
            ("äö", []),
            ("too late", [failed["_id"]]),
            (REPORT.upper(), [failed["_id"]]),
            (INVOICE[1:-1], [text, nested]),
            ("^", []),
            ("\0", []),
            ("pending", []),
            ("", [failed["_id"], text, nested]),
        ):
            answer = api.get(f"?search={quote(search)}").body
            assert ([job["_id"] for job in answer["jobs"]], answer["is_partial"]) == (found, False), search
        assert api.ids(f"?search=a&name={REPORT}&state=failure") == [failed["_id"]]
        assert api.ids(f"?search=a&name={REPORT}&state=pending") == []

    def test_search_text_is_not_shown(self, api: Api) -> None:
        api.run(INVOICE, "text")
        (job,) = api.get().body["jobs"]
        assert not job.keys() & {"text", "key"}
        assert api.get(f"/{job['_id']}").body["job"] == job

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ("?sort=name", "sort"),
            ("?sort=_id", "sort"),
            ("?order=down", "order"),
            (f"?search={'x' * 257}", "search"),
            (f"?sort=due&cursor={encode([1, SOME_ID], of='jobs updated desc')}", "cursor"),
            (f"?sort=due&cursor={encode([SOME_ID], of='jobs due desc')}", "cursor"),
            (f"?cursor={encode([1, SOME_ID], of='jobs created desc')}", "cursor"),
            ("?name=a%20b", "name"),
            ("?state=done", "state"),
            ("?cursor=x", "cursor"),
            ("?cursor=" + forged('["jobs created desc", {"$numberDecimal": "x"}, 1]'), "cursor"),
            ("?cursor=" + forged('["jobs created desc", {"$binary": 1, "$type": "00"}]'), "cursor"),
            ("?limit=0", "limit"),
            ("?limit=201", "limit"),
            (f"?limit={'9' * 5_000}", "limit"),
            ("?limit=x", "limit"),
            ("/x", "id"),
            ("/%00", "id"),
            (f"/{'0' * 25}", "id"),
        ],
    )
    def test_invalid_input_is_422_with_the_field(self, query: str, field: str, api: Api) -> None:
        answer = api.get(query)
        assert (answer.status, answer.body["error"], answer.body["field"]) == (422, "invalid", field)

    def test_an_unknown_id_is_404(self, api: Api) -> None:
        gone = ObjectId()
        for answer in (api.get(f"/{gone}"), *(api.post(f"/{gone}/{act}") for act in ("cancel", "retry"))):
            assert (answer.status, answer.body["error"]) == (404, "not found")
        assert api.post(f"/{gone}/reschedule", NOT_YET).status == 404

    def test_status_has_the_counts_of_each_name_and_the_leader(self, api: Api) -> None:
        job_queue.lead(7, now=server_now())
        api.run(INVOICE, 1)
        due, later = api.run(INVOICE, 2), api.run(INVOICE, 3, **NOT_YET)
        end(due, JobState.EXECUTING)
        api.post("/pause", {"names": [REPORT]})
        status = api.get("/status").body
        queues = {queue["name"]: queue for queue in status["queues"]}
        assert {*queues} == {IMPORT, INVOICE, PARCEL, REPORT}
        invoices = queues[INVOICE]
        assert invoices["states"] == {"pending": 2, "executing": 1, "success": 0, "failure": 0, "canceled": 0}
        assert invoices["running"]["id"] == due["_id"]
        assert invoices["oldest_due"] < status["server_time"] < invoices["next_due"] == later["due"]
        assert (queues[REPORT]["is_paused"], invoices["is_paused"]) == (True, False)
        assert status["leader"]["epoch"] == 7

    def test_many_unfinished_jobs_are_not_counted_each_time(
        self, clean: Servers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cached_answer, "MAX_FRESH_COUNT", 1)
        monkeypatch.setattr(cached_answer, "CACHE_FACTOR", 1_000_000)

        def invoices() -> dict[str, Any]:
            queues = json.loads(bytes(endpoints.status().body))["queues"]
            return next(queue for queue in queues if queue["name"] == INVOICE)

        pending = []
        for number in (1, 2, 3):
            assert job_queues.jobs.run_many(INVOICE, [[number]], delay=hours(1)).stored == 1
            pending.append(invoices()["states"]["pending"])
        assert pending == [1, 2, 2]
        job_queues.jobs.pause([INVOICE])
        assert invoices()["is_paused"]


class TestChanging:
    def test_repeating_job_is_stored_once(self, api: Api) -> None:
        assert api.run(INVOICE, 1, every_seconds=60)["repetition"]["every_ms"] == 60_000
        assert api.run(INVOICE, 2, cron="0 3 * * *")["repetition"]["cron"] == "0 3 * * *"
        again = api.post("", {"name": INVOICE, "arguments": [1], "every_seconds": 60})
        assert (again.status, again.body["error"]) == (409, "blocked")

    @pytest.mark.parametrize("body", [{"cron": "x"}, {"cron": "* * * * *", "every_seconds": 60}])
    def test_malformed_repetition_is_422(self, body: dict[str, Any], api: Api) -> None:
        answer = api.post("", {"name": INVOICE, **body})
        assert (answer.status, answer.body["field"]) == (422, "cron")

    def test_removed_job_is_returned_and_gone(self, api: Api) -> None:
        id = api.run(**NOT_YET)["_id"]
        assert api.ask("DELETE", f"/{id}").body["job"]["_id"] == id
        assert [api.ask(method, f"/{id}").status for method in ("GET", "DELETE")] == [404, 404]

    def test_executing_job_is_not_removed(self, api: Api) -> None:
        job = api.run()
        end(job, JobState.EXECUTING)
        answer = api.ask("DELETE", f"/{job['_id']}")
        assert (answer.status, answer.body["error"]) == (409, "wrong state")

    def test_cancel_then_retry(self, api: Api) -> None:
        job = api.run(INVOICE, **NOT_YET)
        assert api.post(f"/{job['_id']}/cancel").body["job"]["state"] == "canceled"
        again = api.post(f"/{job['_id']}/retry", {}).body["job"]
        assert again["state"] == "pending"
        assert again["due"] < job["due"]

    def test_retry_of_several_does_not_run_successful_jobs_again(self, api: Api) -> None:
        ids = [api.run(INVOICE, number)["_id"] for number in range(2)]
        for id, state in zip(ids, (JobState.SUCCESS, JobState.FAILURE), strict=True):
            end_job(id, state)
        answer = api.post("/retry", {"ids": ids}).body
        assert [one["result"] for one in answer["results"]] == ["WRONG_STATE", "CHANGED"]
        assert [api.get(f"/{id}").body["job"]["state"] for id in ids] == ["success", "pending"]

    def test_one_successful_job_is_run_again_unless_another_state_is_expected(self, api: Api) -> None:
        job = api.run(INVOICE)
        end(job, JobState.SUCCESS)
        path = f"/{job['_id']}/retry"
        stale = api.post(path, {"state": "failure"})
        assert (stale.status, stale.body["error"]) == (409, "wrong state")
        assert "is success and was to be retried only if failure" in stale.body["message"]
        assert api.post(path, {"state": "success"}).body["job"]["state"] == "pending"
        assert api.post(path, {"state": "gone"}).body["field"] == "state"
        end(job, JobState.SUCCESS)
        assert api.post(path).body["job"]["state"] == "pending"

    def test_many_are_changed_with_a_result_for_each(self, api: Api) -> None:
        ids = [api.run(INVOICE, number, **NOT_YET)["_id"] for number in range(2)]
        nothing = "0" * 24
        answer = api.post("/cancel", {"ids": [*ids, nothing, ids[0]]})
        assert answer.body == {
            "changed": 2,
            "of": 3,
            "is_complete": True,
            "results": [
                *({"id": id, "result": "CHANGED"} for id in ids),
                {"id": nothing, "result": "NOT_FOUND"},
            ],
            "undo": None,
        }
        again = api.post("/cancel", {"ids": ids}).body
        assert (again["changed"], {one["result"] for one in again["results"]}) == (0, {"WRONG_STATE"})
        assert api.post("/retry", {"ids": ids}).body["changed"] == 2
        assert api.post("/delete", {"ids": ids}).body["changed"] == 2
        assert api.post("/delete", {"ids": []}).body["field"] == "ids"
        assert api.post("/delete", {"ids": ["x"] * 1_001}).body["field"] == "ids"

    def test_job_locked_by_another_transaction_is_skipped_and_the_others_are_changed(self, api: Api) -> None:
        ids = [api.run(INVOICE, number, **NOT_YET)["_id"] for number in range(3)]
        with database.client().start_session() as session, session.start_transaction():
            model.jobs().update_one({"_id": ObjectId(ids[1])}, {"$set": {"priority": 1}}, session=session)
            answer = api.ask("DELETE", f"/{ids[1]}")
            assert (answer.status, answer.body["error"]) == (503, "unavailable")
            assert answer.body["message"] == "other transactions hold the document; try again"
            assert api.post(f"/{ids[1]}/cancel", {}).body == answer.body
            assert api.post(f"/{ids[1]}/retry", {}).body == answer.body
            audited = api.web.get("/api/audit").body["entries"]
            assert [(entry["action"], entry["outcome"]) for entry in audited] == [
                (action, "failed") for action in ("retry", "cancel", "remove")
            ]
            results = api.post("/delete", {"ids": ids}).body["results"]
        assert [one["result"] for one in results] == ["CHANGED", "CONTENDED", "CHANGED"]
        assert api.ask("DELETE", f"/{ids[1]}").status == 200

    def test_reschedule(self, api: Api) -> None:
        id, at = api.run()["_id"], to_iso(server_now() + seconds(90))
        job = api.post(f"/{id}/reschedule", {"at": at, "priority": 9}).body["job"]
        assert (job["due"], job["priority"]) == (at, 9)
        later = api.post(f"/{id}/reschedule", NOT_YET).body["job"]
        assert later["due"] > at
        same = api.post(f"/{id}/reschedule", {"priority": -1}).body["job"]
        assert (same["due"], same["priority"]) == (later["due"], -1)

    @pytest.mark.parametrize(
        ("members", "field"),
        [
            ({}, "at"),
            ({"at": None}, "at"),
            ({"delay_seconds": -1}, "delay_seconds"),
            ({**NOT_YET, "priority": "1"}, "priority"),
            ({**NOT_YET, "name": "x"}, "name"),
        ],
    )
    def test_invalid_reschedule_is_refused(self, members: Any, field: str, api: Api) -> None:
        answer = api.post(f"/{api.run()['_id']}/reschedule", members)
        assert (answer.status, answer.body["field"]) == (422, field)

    def test_executing_job_cannot_be_changed(self, api: Api) -> None:
        job = api.run()
        end(job, JobState.EXECUTING)
        for act, body in (("retry", None), ("reschedule", NOT_YET)):
            answer = api.post(f"/{job['_id']}/{act}", body)
            assert (answer.status, answer.body["error"]) == (409, "wrong state")
            assert "executing" in answer.body["message"]

    def test_canceled_executing_job_is_asked_to_stop(self, api: Api) -> None:
        job = api.run()
        end(job, JobState.EXECUTING)
        asked = api.post(f"/{job['_id']}/cancel").body["job"]
        assert asked["state"] == "executing"
        assert asked["claim"]["canceled_at"] < asked["claim"]["ends_at"]

    def test_pause_and_resume(self, api: Api) -> None:
        assert api.post("/pause", {"names": [INVOICE, "not.yet"]}).body == {"paused": [INVOICE, "not.yet"]}
        assert {*job_queue.pauses()} == {INVOICE, "not.yet"}
        assert api.post("/resume", {"names": ["not.yet"]}).body == {"resumed": ["not.yet"]}
        assert {*job_queue.pauses()} == {INVOICE}

    @pytest.mark.parametrize("names", [None, "x", [], [1], ["a b"], [INVOICE, "\0"], ["x"] * 1_001])
    def test_names_must_be_names(self, names: Any, api: Api) -> None:
        for path in ("/pause", "/resume"):
            answer = api.post(path, {"names": names})
            assert (answer.status, answer.body["field"]) == (422, "names")
        assert {*job_queue.pauses()} == set()

    def test_clear(self, api: Api) -> None:
        jobs = [api.run(name, 1) for name in (INVOICE, REPORT)]
        for job in jobs:
            end(job, JobState.SUCCESS)
        left = api.run()
        answer = api.post("/clear", {"states": ["success"], "name": REPORT}).body
        assert (answer["deleted"], answer["is_complete"]) == (1, True)
        assert api.post("/clear", {"states": ["success", "cancelled", "failure"]}).body["deleted"] == 1
        assert api.ids() == [left["_id"]]

    @pytest.mark.parametrize(
        ("members", "field"),
        [
            ({}, "states"),
            ({"states": "success"}, "states"),
            ({"states": []}, "states"),
            ({"states": ["done"]}, "states"),
            ({"states": [["success"]]}, "states"),
            ({"states": ["success", "executing"]}, "states"),
            ({"states": ["success"], "name": 5}, "name"),
            ({"states": ["success"], "all": True}, "all"),
        ],
    )
    def test_invalid_clear_is_refused(self, members: Any, field: str, api: Api) -> None:
        api.run()
        answer = api.post("/clear", members)
        assert (answer.status, answer.body["field"]) == (422, field)
        assert len(api.ids()) == 1


PATHS = ["", "/pause", "/resume", "/clear", f"/{'0' * 24}/cancel", f"/{'0' * 24}/retry", f"/{'0' * 24}/reschedule"]


class TestBoundary:
    def test_a_wrong_method_is_405_in_the_common_form(self, api: Api) -> None:
        answer = api.ask("DELETE", "")
        assert (answer.status, set(answer.body)) == (405, {"error", "message"})

    @pytest.mark.parametrize("env", [{}, {**ON, "JOBS_PRODUCTION_ONLY": "true"}])
    def test_jobs_api_does_not_exist_without_the_flag(
        self, env: dict[str, str], servers: Servers, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        assert Api(shared_web(tmp_path_factory, **env)).get().status == 404

    @pytest.mark.slow
    def test_a_module_that_cannot_be_imported_stops_the_start_with_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "broken.py").write_text("1 / 0\n")
        for module in ("no_such", "broken"):
            with forked_web(tmp_path, **ON | {"JOBS_IMPORTS": json.dumps([module])}) as process:
                assert eventually(process.child.poll) == 2
            assert process.log.startswith(f"queue-manager: JOBS_IMPORTS: '{module}' cannot be imported (")
            assert process.log.count("\n") == 1

    @pytest.mark.processes
    def test_unavailable_mongodb_is_503(self, tmp_path: Path) -> None:
        gone = f"mongodb://app:s3cret@127.0.0.1:{free_port()}/product"
        with forked_web(tmp_path, **ON, MONGO_DB_URL=gone) as process:
            api = Api(process)
            with paced() as pace:
                answers = [api.get("/status"), api.post("", {"name": INVOICE})]
        for answer in answers:
            assert (answer.status, answer.body["error"]) == (503, "unavailable")
            assert answer.took < pace.allowed(5)
            assert "s3cret" not in answer.text
        assert "Traceback" not in process.log


# Arbitrary requests

NAMES = ["name", "arguments", "at", "delay_seconds", "priority", "unique", "singular", "names", "states", "x"]
wild_texts = st.text(max_size=8) | st.text(alphabet="\0\ud800\udfff\u202e$.", max_size=4)
wild_texts |= st.sampled_from([INVOICE, "success", "0" * 24, "2030-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00"])
wild_numbers = st.integers() | st.integers(min_value=2**62) | st.floats()
json_values = st.recursive(
    st.none() | st.booleans() | wild_numbers | wild_texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(wild_texts | st.sampled_from(["$ref", "$id", "$db", "$date", "$oid"]), inner, max_size=4)
    ),
    max_leaves=10,
)
objects = st.dictionaries(st.sampled_from(NAMES), json_values, max_size=4)
orders = st.fixed_dictionaries({"name": st.just(INVOICE), "arguments": st.lists(json_values, max_size=3)})
bodies = (objects | orders | json_values).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40)
fuzz = hypothesis(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class TestAnything:
    @pytest.mark.slow
    @fuzz
    @given(st.sampled_from(PATHS), bodies)
    def test_no_body_causes_an_internal_error(self, api: Api, path: str, body: bytes) -> None:
        answer = answered(lambda: api.post(path, body))
        assert answer.status in (200, 201, 400, 404, 409, 422)
        if answer.status >= 400:
            assert set(answer.body) <= {"error", "message", "field"}
        assert answered(api.get).status == 200  # everything that was stored can be shown

    @fuzz
    @given(st.text(min_size=1, max_size=30), st.sampled_from(["", "/cancel", "/retry"]))
    def test_no_id_causes_an_internal_error(self, api: Api, id: str, act: str) -> None:
        path = f"/{quote(id.encode('utf-8', 'surrogatepass'), safe='')}{act}"
        answer = answered(lambda: api.ask("POST" if act else "GET", path))
        assert answer.status in (200, 307, 404, 422)  # 307: it ends with a slash

    @fuzz
    @given(st.sampled_from(["name", "state", "search", "sort", "order", "cursor", "limit"]), st.binary(max_size=20))
    def test_no_query_causes_an_internal_error(self, api: Api, name: str, value: bytes) -> None:
        assert answered(lambda: api.get(f"?{name}={quote(value)}")).status in (200, 422)

    def test_any_arguments_are_returned_unchanged(self, api: Api) -> None:
        @hypothesis(max_examples=60, deadline=None)
        @given(st.lists(json_values, max_size=3))
        def check(arguments: list[Any]) -> None:
            answer = answered(lambda: api.post("", json.dumps({"name": INVOICE, "arguments": arguments})))
            if answer.status == 201:
                assert answered(lambda: api.get(f"/{answer.body['job']['_id']}")).body["job"] == answer.body["job"]

        check()


@pytest.mark.parametrize("sort", ["", "attempts", "due"])
def test_documents_of_another_program_stop_no_page(sort: str, api: Api) -> None:
    others = add_foreign_jobs(INVOICE, server_now())
    ids = {api.run(INVOICE, str(number), **NOT_YET)["_id"] for number in range(3)}
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = api.get(f"?limit=1&sort={sort}&cursor={quote(cursor)}")
        assert answer.status == 200, answer.text
        found += [job["_id"] for job in answer.body["jobs"]]
        cursor = answer.body["cursor"]
    assert sorted(found) == sorted(ids)
    assert api.get("/status").body["other_documents"] == len(others)
    answer = api.get(f"/{TEXT_ID}")
    assert (answer.status, answer.body["error"]) == (404, "not found")
    assert "was stored by another program and is not a job" in answer.body["message"]
    assert api.post(f"/{TEXT_ID}/cancel").status == 409


@pytest.mark.parametrize("id", [TEXT_ID, "a" * 24, 'a b "c" é%2F?#'])
def test_adopted_job_is_shown_and_changed_by_its_text_id(id: str, api: Api) -> None:
    model.jobs().insert_one(foreign_job(INVOICE, "failure", server_now(), id=id))
    job_queues.adopt(is_dry_run=False)
    path = f"/{quote(id, safe='')}"
    assert api.get(path).body["job"]["last_error"]
    assert api.ids("?sort=attempts") == [id]
    assert api.post(f"{path}/reschedule", NOT_YET).body["job"]["state"] == "pending"
    assert api.post(f"{path}/cancel").body["job"] == api.get(path).body["job"]


@pytest.mark.parametrize("action", ["cancel", "retry", "delete"])
def test_a_malformed_id_is_refused_before_anything_is_changed(action: str, api: Api) -> None:
    id = api.run(INVOICE, **NOT_YET)["_id"]
    answer = api.post(f"/{action}", {"ids": [id, "\ud800"]})
    assert (answer.status, answer.body["field"]) == (422, "ids")
    assert api.get(f"/{id}").body["job"]["state"] == "pending"


@pytest.mark.parametrize("field", [field for field in Job.model_fields if field != "id"])
def test_job_that_another_program_stored_without_a_field_is_changed_or_refused(field: str, api: Api) -> None:
    complete = model.jobs().find_one_and_delete({"_id": ObjectId(api.run(INVOICE)["_id"])})
    assert complete is not None
    complete["state"] = JobState.FAILURE
    is_refused = field in ("state", "attempts")

    def store() -> ObjectId:
        id = ObjectId()
        model.jobs().insert_one({name: value for name, value in {**complete, "_id": id}.items() if name != field})
        return id

    for action, body in (("cancel", None), ("retry", None), ("reschedule", NOT_YET), ("reschedule", {"priority": 1})):
        id = store()
        before = model.jobs().find_one(id)
        answer = api.post(f"/{id}/{action}", body)
        after = model.jobs().find_one(id)
        assert after is not None
        if is_refused:
            assert (answer.status, answer.body["error"], after) == (409, "wrong state", before), action
        else:
            assert (answer.status, answer.body.get("job")) == (200, job_as_json(after)), action
            assert after != before
    id = store()
    assert api.ask("DELETE", f"/{id}").status == (409 if is_refused else 200)
    assert model.jobs().count_documents({"_id": id}) == is_refused
    ids = [store(), ObjectId(api.run(INVOICE)["_id"])]
    results = [one["result"] for one in api.post("/delete", {"ids": [*map(str, ids)]}).body["results"]]
    assert results == ["WRONG_STATE" if is_refused else "CHANGED", "CHANGED"]
    assert model.jobs().count_documents({"_id": {"$in": ids}}) == is_refused
