"""Job queues at the Celery edge: the dispatch sends one message a name, and the message runs the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from celery.exceptions import Ignore
from hand_worker import run, take, waiting_messages
from job_lab import Lab
from real_servers import Servers

from beat_schedule import SYSTEMS
from models import job, job_leader, job_queue, scan_run
from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.core.settings import Settings
from services import job_queues
from tasks.beat_entries import beat_entries
from tasks.job_queues import QUEUE, dispatch_due_jobs, run_queue

NAME = "tasks.job_queues.dispatch_due_jobs"


@pytest.fixture
def broker(clean: Servers) -> str:
    return clean.valkey.url


@pytest.fixture
def lab(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """The installation's own jobs, with the laboratory's functions."""
    lab = Lab(server_now)
    monkeypatch.setattr(job_queues, "registry", lab.registry)
    return lab


def test_dispatch_sends_one_message_a_name_with_the_leaders_epoch(lab: Lab, broker: str) -> None:
    for name in ("mail", "mail", "report"):
        lab.run(name)
    report = dispatch_due_jobs(epoch=3)
    assert (report["found"], report["claimed"], report["enqueued"], report["errors"]) == (2, 2, 2, 0)
    messages = waiting_messages(broker, QUEUE)
    assert sorted(message.args for message in messages) == [["mail", 3], ["report", 3]]
    assert {message.id for message in messages} == {queue["claim"]["token"] for queue in job_queue.queues().find()}
    assert scan_run.latest(NAME, limit=1)[0]["enqueued"] == 2


def test_message_runs_the_queue_and_gives_it_back(lab: Lab, broker: str) -> None:
    ids = [lab.run("mail", number) for number in range(3)]
    dispatch_due_jobs(epoch=1)
    assert run(take(broker, QUEUE)) == {"succeeded": 3, "failed": 0, "lost": 0, "stopped": None}
    assert [lab.state(id) for id in ids] == ["success"] * 3
    [queue] = job_queue.queues().find()
    assert "claim" not in queue
    assert "due_at" not in queue


def test_failing_job_is_no_failure_of_its_message_which_comes_back_for_it(lab: Lab, broker: str) -> None:
    id = lab.run("mail")
    lab.works["mail"] = lambda *_, run: 1 / 0
    dispatch_due_jobs(epoch=1)
    assert isinstance(run(take(broker, QUEUE)), Ignore)
    [again] = waiting_messages(broker, QUEUE)
    assert again.retries == 0
    failed = lab.jobs.get(id)
    assert again.eta == pytest.approx(failed["waiting"], abs=seconds(0.5))


def test_job_that_is_due_before_the_next_dispatch_is_sent_with_its_time(lab: Lab, broker: str) -> None:
    id = lab.run("mail", delay=seconds(3))
    dispatch_due_jobs(epoch=1)
    [message] = waiting_messages(broker, QUEUE)
    assert message.eta == lab.jobs.get(id)["due"]


def test_queue_comes_back_for_what_falls_due_soon(lab: Lab, broker: str) -> None:
    lab.run("mail", "now")
    soon = lab.run("mail", "soon", delay=seconds(3))
    dispatch_due_jobs(epoch=1)
    first = take(broker, QUEUE)
    assert isinstance(run(first), Ignore)
    assert lab.ran == [("now",)]
    [again] = waiting_messages(broker, QUEUE)
    assert (again.id, again.args) == (first.id, first.args)
    assert again.eta == pytest.approx(lab.jobs.get(soon)["due"], abs=seconds(0.5))
    [queue] = job_queue.queues().find()
    assert queue["claim"]["claimed_until"] > again.eta  # nobody else is sent meanwhile


def test_queue_whose_time_is_over_hands_on_to_itself(lab: Lab, broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queues, "BUDGET", seconds(0))
    lab.run("mail")
    dispatch_due_jobs(epoch=1)
    first = take(broker, QUEUE)
    assert isinstance(run(first), Ignore)
    monkeypatch.setattr(job_queues, "BUDGET", seconds(30))
    again = take(broker, QUEUE)
    assert (again.id, again.args, again.retries) == (first.id, first.args, first.retries)
    assert run(again)["succeeded"] == 1


def test_older_epoch_sends_nothing_and_what_it_had_sent_does_nothing(lab: Lab, broker: str) -> None:
    id = lab.run("mail")
    dispatch_due_jobs(epoch=1)
    dispatch_due_jobs(epoch=2)
    assert dispatch_due_jobs(epoch=1)["refused"] == 1
    old, new = take(broker, QUEUE), take(broker, QUEUE)
    assert (old.args, new.args) == (["mail", 1], ["mail", 2])
    assert run(old)["stopped"] == "another leader has taken over"
    assert lab.state(id) == "pending"
    assert run(new)["succeeded"] == 1
    assert waiting_messages(broker, QUEUE) == []


def test_call_with_what_is_no_name_is_harmless(lab: Lab) -> None:
    assert run_queue("nobody")["succeeded"] == 0
    assert job.jobs().count_documents({}) == 0


def test_figures_tell_what_waits_what_executes_and_what_is_paused(lab: Lab) -> None:
    lab.executing(lab.run("mail"))
    lab.run("report")
    lab.jobs.pause(["report"])
    stats = job_queues.stats()
    assert stats.numbers["executing"] == 1
    assert stats.numbers["pending"] == 2
    assert stats.details == ["paused: report"]


@pytest.mark.parametrize(
    ("chosen", "fires"),
    [
        ({"qm_jobs": False}, False),
        ({"qm_jobs": True}, True),
        ({"qm_jobs": True, "jobs_production_only": True, "APP_ENV": "development"}, False),
        ({"qm_jobs": True, "jobs_production_only": True, "APP_ENV": "production"}, True),
    ],
)
def test_dispatch_fires_where_jobs_may_run_and_carries_the_epoch(chosen: dict[str, object], fires: bool) -> None:
    entries = beat_entries(SYSTEMS, Settings(_env_file=None, **chosen))  # type: ignore[call-arg]
    assert ("job-queues" in entries) is fires
    if fires:
        assert entries["job-queues"]["kwargs"] == {"epoch": None}
        assert entries["job-queues"]["schedule"] == seconds(5)


def test_leader_is_noted_by_each_dispatch(lab: Lab, figure: Callable[[str], None]) -> None:
    dispatch_due_jobs(epoch=9)
    assert job_leader.current_epoch() == 9
