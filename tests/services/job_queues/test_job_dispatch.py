"""Dispatch of job queues: which names, lost jobs, leaders and takeovers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from bson import ObjectId
from pymongo.errors import AutoReconnect

from models import executing_job, job, job_attempt, job_queue
from models.job import JobState
from models.job_attempt import JobOutcome
from queue_manager.core.clock import minutes, seconds, truncate
from queue_manager.core.redis_client import connect, time_of
from queue_manager.leases import lease_server
from queue_manager.leases.scripts import JUST_TAKEN_MS
from services.job_queues.runner import READ_TTL
from tests.job_lab import LEASE, PERIOD, Lab, lost_lease
from tests.real_servers import Servers
from tests.rooms import T0, unchangeable

A_MOMENT = seconds(0.001)


def age_waiting(servers: Servers) -> None:
    """Let the only message have waited for so long that it counts as lost if the broker has none."""
    with connect(servers.valkey.url) as client:
        (lease,) = client.zrange("qm:lease:job-queues:waiting", 0, -1)
        client.zincrby("qm:lease:job-queues:waiting", -2 * JUST_TAKEN_MS, lease)


# Dispatch


def test_names_with_due_jobs_are_dispatched_once(lab: Lab) -> None:
    for _ in range(3):
        lab.run("mail")
    lab.run("report", delay=minutes(5))
    assert lab.names_dispatched() == ["mail"]
    assert lab.names_dispatched() == []
    lab.hand.advance(minutes(5))
    assert "report" in lab.names_dispatched()


def test_job_due_before_the_next_dispatch_is_dispatched_with_its_eta(lab: Lab) -> None:
    lab.run("mail", delay=seconds(2))
    lab.run("report", delay=PERIOD + seconds(1))
    [item] = lab.dispatch()[0]
    assert (item.args, item.eta) == (("mail", None), T0 + seconds(2))


def test_due_job_is_dispatched_although_a_message_with_an_eta_waits(lab: Lab) -> None:
    lab.run("mail", delay=seconds(4))
    assert lab.names_dispatched(epoch=1) == ["mail"]
    assert lab.names_dispatched(epoch=1) == []  # one is on its way
    lab.run("mail")
    [item] = lab.dispatch(epoch=1)[0]
    assert (item.args, item.eta) == (("mail", 1), None)
    assert lab.names_dispatched(epoch=1) == []  # as it is for what is due now


def test_executing_queue_is_not_dispatched_again(lab: Lab) -> None:
    lab.run("mail")
    [item] = lab.dispatch()[0]
    lab.executing(lab.run("mail"), token=item.task_id)
    lab.end_run(item)  # its task ended badly; the job still has its lease
    assert lab.names_dispatched() == []


def test_queue_whose_message_was_lost_is_dispatched_again_after_the_lease(lab: Lab, clean: Servers) -> None:
    lab.run("mail")
    assert lab.names_dispatched() == ["mail"]
    age_waiting(clean)
    assert lab.names_dispatched(messages=1, lease=A_MOMENT) == []  # it waits in the broker, as long as it takes
    assert lab.names_dispatched(lease=A_MOMENT) == ["mail"]


@pytest.mark.parametrize("wait", [0, 0.1])
def test_postponed_queue_is_not_dispatched_again_while_its_message_waits(lab: Lab, wait: float, clean: Servers) -> None:
    lab.run("mail")
    [item] = lab.dispatch()[0]
    work = lab.dispatching(lease=A_MOMENT)
    work.renew([item])  # a worker received it
    work.postpone([item], wait=seconds(wait))
    age_waiting(clean)
    assert lab.names_dispatched(messages=1, lease=A_MOMENT) == []
    assert lab.names_dispatched(lease=A_MOMENT) == ["mail"]  # its message is lost
    assert lab.names_dispatched(messages=1, lease=A_MOMENT) == []


def test_queue_that_failed_as_a_whole_cools_down_for_one_lease(lab: Lab) -> None:
    lab.run("mail")
    work = lab.dispatching()
    [item] = lab.dispatch()[0]
    with lease_server() as client:
        before = truncate(time_of(client.time()))
        work.give_up(item, error="boom")
        [cooling] = work.leases.statuses([item.lease])
        assert cooling.ends_at is not None
        assert before <= cooling.ends_at - LEASE <= time_of(client.time())
        assert lab.names_dispatched() == []
        client.zadd(work.leases.keys.cooling, {item.lease: 1_000})  # it has ended
    assert lab.names_dispatched() == ["mail"]
    work.give_up(item, error="boom")
    assert lab.names_dispatched(epoch=1) == ["mail"]  # a new leader does not wait


def test_job_stored_while_its_run_ends_is_found_by_the_next_dispatch(lab: Lab) -> None:
    lab.run("mail", 1)
    [item] = lab.dispatch()[0]
    lab.run_through(token=item.task_id)
    lab.run("mail", 2)
    lab.end_run(item)
    assert lab.names_dispatched() == ["mail"]


# What was lost


def test_lost_job_is_due_immediately_and_the_loss_counts_as_an_attempt(lab: Lab) -> None:
    id = lab.run("mail")
    [item] = lab.dispatch()[0]
    lab.executing(id, token=item.task_id)
    lab.hand.advance(LEASE)
    items, noted = lab.dispatch()
    assert (noted, [item.args[0] for item in items]) == ({"reaped": 1}, ["mail"])
    lost = lab.jobs.get(id)
    assert (lost["state"], lost["attempts"], lost["waiting"]) == ("failure", 1, lab.clock())
    assert lost["last_error"] == lost["history"][-1]["error"] == "The worker was lost while it executed the job"
    assert "claim" not in lost
    lab.run_through(token=items[0].task_id)
    assert (lab.state(id), lab.jobs.get(id)["attempts"]) == ("success", 2)


def test_job_that_keeps_losing_its_worker_waits_longer_each_time(lab: Lab) -> None:
    id = lab.run("mail")
    rests = []
    for _ in range(10):
        lab.executing(id)
        lab.hand.advance(LEASE)
        lab.dispatch()
        lost = lab.jobs.get(id)
        rests.append((lost["waiting"] - lab.clock()).total_seconds())
        lab.hand.now = lost["waiting"]
    assert rests == [0, 5, 10, 20, 40, 80, 160, 320, 600, 600]
    lab.run_through()
    assert "losses" not in lab.jobs.get(id)


def test_lease_that_was_renewed_meanwhile_is_not_reaped(lab: Lab) -> None:
    id = lab.run("mail")
    lab.executing(id, token="alive")
    lab.hand.advance(LEASE)
    [seen] = executing_job.find()
    assert job_attempt.renew(seen.id, token="alive", until=lab.clock() + LEASE)
    assert not job_attempt.reap(seen, JobOutcome(state=JobState.FAILURE), now=lab.clock())
    assert lab.state(id) == "executing"


def test_lost_job_that_was_canceled_after_it_was_read_ends_canceled(lab: Lab) -> None:
    id = lab.run("mail")
    lab.executing(id)
    lab.hand.advance(LEASE)
    [seen] = executing_job.find()
    lab.jobs.cancel(id)
    assert not job_attempt.reap(seen, JobOutcome(state=JobState.FAILURE), now=lab.clock())
    lab.dispatch()
    assert lab.state(id) == "canceled"


@pytest.mark.parametrize("epoch", [1, 2], ids=["same leader", "next leader"])
def test_job_whose_lease_ended_in_an_outage_may_renew_it_first(lab: Lab, epoch: int) -> None:
    alive, dead = lab.run("mail"), lab.run("report")
    lab.dispatch(epoch=1)
    document = lab.executing(alive, token="alive")
    lab.executing(dead, token="dead")
    lab.hand.advance(LEASE + seconds(1))
    for _ in range(2):  # several dispatches have waited for the database
        assert "reaped" not in lab.dispatch(epoch=epoch)[1]
    assert job_attempt.renew(document["_id"], token="alive", until=lab.clock() + LEASE)
    lab.hand.advance(LEASE / 3)
    assert lab.dispatch(epoch=epoch)[1] == {"reaped": 1}
    assert (lab.state(alive), lab.state(dead)) == ("executing", "failure")


def test_lease_that_ended_before_an_outage_is_reaped_after_it(lab: Lab) -> None:
    id = lab.run("mail")
    lab.executing(id)
    lab.hand.advance(LEASE)
    job_queue.lead(1, now=lab.clock())
    lab.hand.advance(minutes(5))
    assert lab.dispatch(epoch=1)[1] == {"reaped": 1}


def test_former_leader_is_refused_although_dispatches_are_rare(lab: Lab) -> None:
    job_queue.lead(2, now=lab.clock(), min_gap=minutes(10))
    lab.hand.advance(minutes(10))
    with pytest.raises(job_queue.NewerLeader):
        job_queue.lead(1, now=lab.clock(), min_gap=minutes(10))
    lab.hand.advance(A_MOMENT)
    assert job_queue.lead(1, now=lab.clock(), min_gap=minutes(10))


def test_lost_job_is_reaped_although_every_dispatch_is_late(lab: Lab) -> None:
    id = lab.run("mail")
    lab.dispatch(epoch=1)
    lab.executing(id)
    noted = []
    for _ in range(3):
        lab.hand.advance(LEASE + seconds(1))
        noted.append(lab.dispatch(epoch=1)[1])
    assert noted == [{}, {"reaped": 1}, {}]


def test_lease_is_never_shortened(lab: Lab) -> None:
    id = lab.run("mail")
    lab.executing(id, token="alive")
    found = lab.jobs.get(id)["_id"]
    assert job_attempt.renew(found, token="alive", until=T0)
    assert lab.jobs.get(id)["claim"]["claimed_until"] == T0 + LEASE
    assert not job_attempt.renew(found, token="another", until=T0 + LEASE * 2)


# Who leads


def test_dispatch_records_epoch_start_and_heartbeat_of_the_leader(lab: Lab) -> None:
    lab.dispatch(epoch=3)
    lab.hand.advance(seconds(5))
    lab.dispatch(epoch=3)
    job_queue.lead(3, now=T0)  # by a process that is slow
    assert job_queue.leader() == {"epoch": 3, "heartbeat": T0 + seconds(5), "since": T0}


def snapshot() -> list[Any]:
    return [[*collection.find(sort=[("_id", 1)])] for collection in (job.jobs(), job_queue.queues())]


def test_dispatch_of_an_older_epoch_is_refused_and_changes_nothing(lab: Lab) -> None:
    lab.dispatch(epoch=5)
    lost = lab.run("report")
    lab.executing(lost)
    lost_lease(lost)
    lab.run("mail")
    before, leader = snapshot(), job_queue.leader()
    lab.hand.advance(seconds(59))
    assert lab.dispatch(epoch=4) == ([], {"refused": 1})
    assert (snapshot(), job_queue.leader()) == (before, leader)


def test_lower_epoch_after_data_loss_in_redis_is_accepted_after_a_minute_without_heartbeats(lab: Lab) -> None:
    lab.dispatch(epoch=57)
    lab.run("mail")
    for second in (1, 30, 60):
        lab.hand.now = T0 + seconds(second)
        assert lab.dispatch(epoch=1) == ([], {"refused": 1})
    lab.hand.now = T0 + seconds(60.001)
    assert lab.names_dispatched(epoch=1) == ["mail"]
    assert job_queue.leader_epoch() == 1
    lab.hand.advance(seconds(1))
    assert lab.names_dispatched(epoch=2) == ["mail"]  # sent by epoch 1, and refused from now on


def test_manual_dispatch_causes_no_takeover_and_the_leader_does_not_repeat_it(lab: Lab) -> None:
    lab.dispatch(epoch=5)
    lab.run("mail")
    assert lab.names_dispatched() == ["mail"]
    assert job_queue.leader_epoch() == 5
    assert lab.names_dispatched(epoch=5) == []


def test_run_of_an_older_epoch_stops_between_two_jobs(lab: Lab) -> None:
    lab.dispatch(epoch=1)
    for number in range(3):
        lab.run("mail", number)

    def be_overtaken(*_: Any, run: Any) -> None:
        lab.dispatch(epoch=2)
        time.sleep(READ_TTL * 1.1)  # a look at the leader is believed for so long

    lab.works["mail"] = be_overtaken
    report = lab.run_through(epoch=1)
    assert (report.succeeded, report.stopped) == (1, "another leader has taken over")
    assert lab.states() == {"success": 1, "pending": 2}
    assert lab.run_through(epoch=1).succeeded == 0


def test_manually_started_run_continues_through_a_take_over(lab: Lab) -> None:
    lab.dispatch(epoch=1)
    lab.run("mail")
    lab.dispatch(epoch=2)
    assert lab.run_through(epoch=None).succeeded == 1


def failing(lab: Lab, name: str = "mail") -> str:
    id = lab.run(name)
    lab.works[name] = lambda *_, run: 1 / 0
    lab.run_through(name)
    del lab.works[name]
    return id


def test_take_over_makes_every_failed_job_due_immediately(lab: Lab) -> None:
    lab.dispatch(epoch=1)
    ids = [failing(lab), failing(lab, "report")]
    assert [lab.state(id) for id in ids] == ["failure", "failure"]
    lab.hand.advance(seconds(1))
    assert sorted(item.args[0] for item in lab.dispatch(epoch=2)[0]) == ["mail", "report"]
    assert [lab.jobs.get(id)["waiting"] for id in ids] == [lab.clock()] * 2
    assert lab.dispatch(epoch=2)[0] == []  # each once


def test_take_over_releases_queues_dispatched_by_the_older_leader(lab: Lab) -> None:
    lab.dispatch(epoch=1)
    failing(lab)
    lab.hand.advance(seconds(6))
    [sent] = lab.dispatch(epoch=1)[0]
    [again] = lab.dispatch(epoch=2)[0]
    assert again.task_id != sent.task_id
    assert lab.run_through(token=sent.task_id, epoch=1).stopped == "another leader has taken over"
    lab.end_run(sent)
    assert lab.dispatch(epoch=2)[0] == []  # what the newer leader dispatched is untouched
    assert lab.run_through(token=again.task_id, epoch=2).succeeded == 1


def test_a_job_that_mongodb_refuses_to_change_does_not_stop_the_others(lab: Lab) -> None:
    lab.dispatch(epoch=1)
    ids = [failing(lab) for _ in range(3)]
    with unchangeable(job.JOBS_COLLECTION, ObjectId(ids[0])):
        lab.dispatch(epoch=2)
    assert [lab.jobs.get(id).get("first") for id in ids] == [None, 1, 1]
    malformed = {"state": "executing", "claim": {"claimed_until": "soon"}}
    job.jobs().update_one({"_id": ObjectId(ids[0])}, {"$set": malformed, "$unset": {"waiting": ""}})
    lab.run("report")
    with unchangeable(job.JOBS_COLLECTION, ObjectId(ids[0])):
        assert lab.names_dispatched(epoch=2) == ["report"]


@pytest.mark.parametrize("broken", ["job.make_failed_due", "executing_job.find", "job.due_names"])
def test_take_over_interrupted_by_an_outage_is_completed_later(
    lab: Lab, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.dispatch(epoch=1)
    id = failing(lab)

    def fail(*_: Any, **__: Any) -> Any:
        raise AutoReconnect("connection closed")

    with monkeypatch.context() as patched:
        patched.setattr(f"models.{broken}", fail)
        with pytest.raises(AutoReconnect):
            lab.dispatch(epoch=2)
    assert [report.succeeded for report in lab.serve(epoch=2)] == [1]
    assert lab.state(id) == "success"
