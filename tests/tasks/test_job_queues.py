"""Job queues at the Celery edge: dispatch sends one message per name, and the message runs the queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import redis
from celery.exceptions import Ignore

from beat_schedule import SYSTEMS
from models import job, scan_run
from models.database import server_now
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.retry import RetryPolicy
from queue_manager.core.settings import Settings, settings
from queue_manager.health_rules import Rule
from queue_manager.items import DueItem
from services import job_queues
from services.job_queues import runner
from tasks import job_queues as tasks
from tasks.job_queues import JOBS_QUEUE, dispatch_due_jobs, run_queue
from tasks.systems import beat_entries
from tests.job_lab import Lab
from tests.pace import Pace, paced
from tests.real_servers import Servers
from tests.tasks.hand_worker import run, take, waiting_messages

NAME = "tasks.job_queues.dispatch_due_jobs"


@pytest.fixture
def rare_dispatches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The next dispatch is ten minutes away, so that what is due before it need not be close."""
    with monkeypatch.context() as patch:
        patch.setenv("JOBS_TIMER_MS", "600000")
        settings.cache_clear()
        yield
    settings.cache_clear()


def require_close(eta: datetime | None, due: datetime, pace: Pace) -> None:
    """Fail unless a message comes back when its job is due; it is sent after a round trip."""
    assert eta is not None
    assert seconds(-0.5) <= eta - due <= seconds(pace.allowed(0.5))


@pytest.fixture
def lab(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The installation's own jobs, with the laboratory's functions."""
    lab = Lab(server_now)
    monkeypatch.setattr(tasks, "registry", lab.registry)
    return lab


def test_dispatch_sends_one_message_per_name_with_the_epoch_of_the_leader(lab: Lab, broker: str) -> None:
    for name in ("mail", "mail", "report"):
        lab.run(name)
    report = dispatch_due_jobs(epoch=3)
    assert (report["found"], report["claimed"], report["enqueued"], report["errors"]) == (2, 2, 2, 0)
    messages = waiting_messages(broker, JOBS_QUEUE)
    assert sorted(message.args for message in messages) == [["mail", 3], ["report", 3]]
    assert dispatch_due_jobs(epoch=3)["enqueued"] == 0
    assert scan_run.latest(NAME, limit=2)[1].enqueued == 2


def test_message_runs_all_due_jobs_of_its_queue_and_releases_it(lab: Lab, broker: str) -> None:
    ids = [lab.run("mail", number) for number in range(3)]
    dispatch_due_jobs(epoch=1)
    assert run(take(broker, JOBS_QUEUE)) == {
        "succeeded": 3,
        "failed": 0,
        "canceled": 0,
        "lost": 0,
        "stopped": None,
    }
    assert [lab.state(id) for id in ids] == ["success"] * 3
    lab.run("mail")
    assert dispatch_due_jobs(epoch=1)["enqueued"] == 1


@pytest.mark.usefixtures("rare_dispatches")
def test_failing_job_reschedules_its_queue_message_without_failing_it(
    lab: Lab, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "JOB_RETRY_POLICY", RetryPolicy(max_attempts=None, base=minutes(1)))
    id = lab.run("mail")
    lab.works["mail"] = lambda *_, run: 1 / 0
    dispatch_due_jobs(epoch=1)
    with paced() as pace:
        assert isinstance(run(take(broker, JOBS_QUEUE)), Ignore)
    [again] = waiting_messages(broker, JOBS_QUEUE)
    assert again.retries == 0
    require_close(again.eta, lab.jobs.get(id)["waiting"], pace)


@pytest.mark.usefixtures("rare_dispatches")
def test_queue_message_is_rescheduled_for_a_job_that_falls_due_soon(lab: Lab, broker: str) -> None:
    lab.run("mail", "now")
    soon = lab.run("mail", "soon", delay=minutes(5))
    dispatch_due_jobs(epoch=1)
    first = take(broker, JOBS_QUEUE)
    with paced() as pace:
        assert isinstance(run(first), Ignore)
    assert lab.ran == [("now",)]
    [again] = waiting_messages(broker, JOBS_QUEUE)
    assert (again.id, again.args) == (first.id, first.args)
    require_close(again.eta, lab.jobs.get(soon)["due"], pace)
    lab.run("mail", "now")
    assert dispatch_due_jobs(epoch=1)["enqueued"] == 0  # nobody else is sent meanwhile


def test_queue_message_is_requeued_when_its_time_budget_is_used_up(
    lab: Lab, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "RUN_BUDGET", seconds(0))
    lab.run("mail")
    dispatch_due_jobs(epoch=1)
    first = take(broker, JOBS_QUEUE)
    assert isinstance(run(first), Ignore)
    monkeypatch.setattr(tasks, "RUN_BUDGET", seconds(30))
    again = take(broker, JOBS_QUEUE)
    assert (again.id, again.args, again.retries) == (first.id, first.args, first.retries)
    assert run(again)["succeeded"] == 1


def test_outdated_epoch_dispatches_nothing_and_its_earlier_messages_are_ignored(lab: Lab, broker: str) -> None:
    id = lab.run("mail")
    dispatch_due_jobs(epoch=1)
    dispatch_due_jobs(epoch=2)
    assert dispatch_due_jobs(epoch=1)["refused"] == 1
    old, new = take(broker, JOBS_QUEUE), take(broker, JOBS_QUEUE)
    assert (old.args, new.args) == (["mail", 1], ["mail", 2])
    assert run(old)["stopped"] == "another leader has taken over"
    assert lab.state(id) == "pending"
    assert run(new)["succeeded"] == 1
    assert waiting_messages(broker, JOBS_QUEUE) == []


def test_running_an_unknown_queue_does_nothing(lab: Lab) -> None:
    assert run_queue("nobody")["succeeded"] == 0
    assert job.jobs().count_documents({}) == 0


def test_stats_count_pending_executing_and_paused_jobs(lab: Lab) -> None:
    for name in ("paper", "ink"):
        lab.register(name)
        lab.run(name)
    assert job_queues.stats().numbers.items() >= {"pending": 2, "in_progress": 0, "executing": 0}.items()
    dispatch_due_jobs()
    lab.executing(lab.run("mail"))
    lab.run("report")
    lab.jobs.pause(["report"])
    stats = job_queues.stats()
    assert stats.numbers.items() >= {"pending": 0, "in_progress": 2, "stuck": 0, "executing": 1}.items()
    assert stats.numbers["lag_seconds"] == 0
    [detail] = stats.details
    assert detail.startswith("paused: report since ")


def test_queue_whose_worker_is_gone_is_stuck_and_lags(lab: Lab) -> None:
    lab.run("mail")
    job.jobs().update_many({}, {"$set": {"waiting": server_now() - minutes(2)}})
    work = lab.dispatching()
    [item] = lab.dispatch()[0]
    work.renew([item])  # a worker received it, and does nothing with it
    assert job_queues.stats().numbers.items() >= {"in_progress": 1, "stuck": 0, "lag_seconds": 0}.items()
    with redis.Redis.from_url(settings().redis_url, decode_responses=True) as client:
        client.zadd(work.leases.keys.running, {item.lease: 1_000 * (client.time()[0] - 60)})
    stats = job_queues.stats()
    assert stats.numbers.items() >= {"pending": 0, "in_progress": 0, "stuck": 1}.items()
    assert stats.numbers["lag_seconds"] >= 120
    assert stats.late == ["mail"]
    assert stats.problems[Rule.STUCK_ITEMS].startswith(
        "1 stuck job queue: due, but the worker's lease ended more than 15 s ago"
    )


def test_queue_whose_task_fails_finally_cools_down_and_is_a_health_problem(lab: Lab, broker: str) -> None:
    lab.run("mail")
    dispatch_due_jobs()
    dispatch = lab.dispatching()
    dispatch.give_up(DueItem(task_id="t", args=("mail", None), lease="mail@"), error="boom")
    assert dispatch_due_jobs()["enqueued"] == 0
    stats = job_queues.stats()
    assert stats.numbers.items() >= {"pending": 0, "in_progress": 0, "cooling_off": 1, "lag_seconds": 0}.items()
    assert stats.problems[Rule.FAILED_ITEMS].startswith("1 failed job queue: every attempt to run its jobs failed")


@pytest.mark.parametrize(
    ("chosen", "fires"),
    [
        ({"qm_jobs": False}, False),
        ({"qm_jobs": True}, True),
        ({"qm_jobs": True, "jobs_production_only": True, "APP_ENV": "development"}, False),
        ({"qm_jobs": True, "jobs_production_only": True, "APP_ENV": "production"}, True),
    ],
)
def test_dispatch_is_scheduled_only_where_jobs_may_run_and_carries_the_epoch(
    chosen: dict[str, Any], fires: bool
) -> None:
    entries = beat_entries(SYSTEMS, Settings(_env_file=None, **chosen))  # type: ignore[call-arg]
    assert ("job-queues" in entries) is fires
    if fires:
        assert entries["job-queues"]["kwargs"] == {"epoch": None}
        assert entries["job-queues"]["schedule"] == seconds(5)
