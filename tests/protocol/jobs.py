"""The protocol of the jobs of one name: runs start them one at a time or in batches, and write their outcomes.

Each change of a job is one conditional write (`models/job_attempt.py`, `models/job_operations.py`), so each step below
is one, and is what the write does to the job's document. Runs may be late or die at every moment, a lease ends if it
was not renewed, and operators interfere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.protocol.checker import Specification, Steps, invariant, step

State = Literal["pending", "executing", "success", "failure", "canceled", "deleted"]
Outcome = Literal["success", "failure", "final failure", "canceled", "interrupted"]
"""After a final failure, only an operator or a new leader makes the job due."""


class Claim(NamedTuple):
    """`claim` of an executing job."""

    run: int
    is_over: bool = False
    """Its lease has ended."""
    is_canceled: bool = False
    """An operator asked the function to stop."""
    batch: tuple[int, ...] = ()
    """The jobs that are reserved with it: `page`."""


class Reservation(NamedTuple):
    """`reserved` of a job that waits."""

    run: int
    is_over: bool = False


class Job(NamedTuple):
    """The document of a job."""

    state: State = "pending"
    waiting: Literal["now", "later", "never"] = "now"
    """Whether it can be started: `waiting` is past, in the future, or missing."""
    attempts: int = 0
    claim: Claim | None = None
    reserved: Reservation | None = None
    is_alone: bool = False
    """It was reserved when a run was lost, and must not share a batch."""
    losses: int = 0
    """Runs in a row that were lost with it."""

    is_canceled: bool = False
    """An operator canceled it, and did not make it due again."""
    has_succeeded: bool = False
    """And no operator has made it due again."""


class Read(NamedTuple):
    """A job as a run has read it."""

    job: int
    attempts: int


class Ended(NamedTuple):
    """An attempt whose outcome is not written yet."""

    is_claimed: bool
    """False: the job was only reserved. These are written first."""
    read: Read
    outcome: Outcome


class Run(NamedTuple):
    """What a run of the queue knows."""

    next: tuple[Read, ...] = ()
    """The jobs to start with its next write: the first is claimed, the others are reserved."""
    has_missed: bool = False
    """The first was not started; the same command goes on and reserves the others."""
    claimed: Read | None = None
    batch: tuple[Read, ...] = ()
    """Reserved jobs that it has not executed yet."""
    executing: Read | None = None
    ended: tuple[Ended, ...] = ()
    is_ending: bool = False
    """Its process was told to end: it starts no further job."""
    is_lost: bool = False
    """Its claim, or a reservation, ended before it wrote the outcome."""

    @property
    def is_busy(self) -> bool:
        return bool(self.next or self.batch or self.executing)


class Queue(NamedTuple):
    """The state of everything: the jobs of one name, the runs, and what may still happen."""

    jobs: tuple[Job, ...] = ()
    runs: tuple[Run | None, ...] = ()
    """None: its process is dead."""
    failures: int = 0
    faults: int = 0
    operations: int = 0

    def with_job(self, number: int, job: Job) -> Queue:
        return self._replace(jobs=(*self.jobs[:number], job, *self.jobs[number + 1 :]))

    def with_run(self, number: int, run: Run | None) -> Queue:
        return self._replace(runs=(*self.runs[:number], run, *self.runs[number + 1 :]))

    def with_lost_run(self, number: int) -> Queue:
        run = self.runs[number]
        return self if run is None else self.with_run(number, run._replace(is_lost=True))

    def after_fault(self) -> Queue:
        return self._replace(faults=self.faults - 1)


@dataclass(frozen=True)
class JobProtocol(Specification[Queue]):
    """The life of the jobs of one name. The fields are the bounds of what is explored."""

    jobs: int = 2
    runs: int = 2
    failures: int = 1
    faults: int = 1
    operations: int = 1

    def initial(self) -> Queue:
        return Queue(
            jobs=(Job(),) * self.jobs,
            runs=(Run(),) * self.runs,
            failures=self.failures,
            faults=self.faults,
            operations=self.operations,
        )

    # A run: its next jobs

    @step
    def read(self, queue: Queue) -> Steps[Queue]:
        # models/job.py, next_jobs: what is due, in any order; not what it has executed and not written.
        for number, run in alive(queue):
            ended = [one.read.job for one in run.ended]
            due = [at for at, job in enumerate(queue.jobs) if job.waiting == "now" and at not in ended]
            for first in [] if run.is_busy or run.is_ending else due:
                others = [other for other in due if other != first]
                for batch in [(), *((other,) for other in others if self.may_share(queue, first, other))]:
                    found = tuple(Read(at, queue.jobs[at].attempts) for at in (first, *batch))
                    yield f"run {number} reads {shown(first, *batch)}", queue.with_run(number, run._replace(next=found))

    @step
    def start(self, queue: Queue) -> Steps[Queue]:
        # models/job_attempt.py, _start: by the unique index, one job of a name is executing.
        for number, run in alive(queue):
            if run.next and not run.ended and run.claimed is None and not run.has_missed:
                first, *others = run.next
                batch = tuple(other.job for other in others)
                words = f"run {number} starts {shown(first.job, batch=batch)}"
                if self.may_start(queue, first):
                    started = started_job(queue.jobs[first.job], Claim(number, batch=batch))
                    run = run._replace(next=tuple(others), claimed=first, executing=None if others else first)
                    yield words, queue.with_job(first.job, started).with_run(number, run)
                elif self.is_unchanged(queue, first):
                    yield f"{words}; another one is executing", queue.with_run(number, run._replace(next=()))
                else:
                    missed = run._replace(next=tuple(others), has_missed=bool(others))
                    yield f"{words}; it does not wait any more", queue.with_run(number, missed)

    @step
    def reserve(self, queue: Queue) -> Steps[Queue]:
        # models/job_attempt.py, _reserve: by the same command as the start, after it.
        for number, run in alive(queue):
            if run.next and not run.ended and (run.claimed is not None or run.has_missed):
                (other,) = run.next
                job = queue.jobs[other.job]
                executing = run._replace(next=(), executing=run.claimed, has_missed=False)
                words = f"run {number} reserves {shown(other.job)}"
                if self.may_reserve(queue, number, other):
                    reserved = queue.with_job(other.job, job._replace(reserved=Reservation(number)))
                    batch = () if run.has_missed else (other,)
                    yield words, reserved.with_run(number, executing._replace(batch=batch))
                else:
                    yield f"{words}; it is refused", queue.with_run(number, executing)

    @step
    def execute_reserved(self, queue: Queue) -> Steps[Queue]:
        # Only while the reservation has not ended, by the run's own clock.
        for number, run in alive(queue):
            if run.batch and run.executing is None and not run.is_ending:
                reserved = queue.jobs[run.batch[0].job].reserved
                if reserved != Reservation(number, is_over=True):
                    following = run._replace(batch=run.batch[1:], executing=run.batch[0])
                    yield f"run {number} executes {shown(run.batch[0].job)}", queue.with_run(number, following)
                yield f"run {number} puts off its batch", queue.with_run(number, run._replace(batch=()))

    # A run: outcomes

    @step
    def function_ends(self, queue: Queue) -> Steps[Queue]:
        for number, run in alive(queue):
            if run.executing is not None:
                job, claim = run.executing.job, queue.jobs[run.executing.job].claim
                words = f"run {number}: {shown(job)}"
                yield f"{words} returns", self.ended(queue, number, run, "success")
                failures: tuple[Outcome, ...] = ("failure", "final failure") if queue.failures else ()
                for failure in failures:
                    failed = self.ended(queue, number, run, failure)
                    yield f"{words} raises: {failure}", failed._replace(failures=queue.failures - 1)
                if claim is not None and claim.run == number and claim.is_canceled:
                    yield f"{words} stops", self.ended(queue, number, run, "canceled")
                if queue.faults:
                    told = self.ended(queue, number, run._replace(is_ending=True, batch=()), "interrupted")
                    yield f"{words} is interrupted", told.after_fault()

    @step
    def write_outcome(self, queue: Queue) -> Steps[Queue]:
        # models/job_attempt.py, finish
        for number, run in alive(queue):
            if run.ended and not run.executing and not run.batch:
                ended = self.next_outcome(run)
                left = run._replace(ended=tuple(one for one in run.ended if one != ended))
                left = left._replace(claimed=None) if not left.ended else left
                over = None if left.is_ending and not left.ended else left
                words = f"run {number} writes that {shown(ended.read.job)} ended: {ended.outcome}"
                if (outcome := self.outcome_to_write(queue, number, ended)) is None:
                    yield f"{words}; it is refused", queue.with_run(number, over)
                    continue
                written = self.written(queue, ended.read.job, outcome).with_run(number, over)
                yield words, written
                if queue.faults:
                    yield f"{words}, hears no answer, and asks", written.after_fault()

    @step
    def hand_over(self, queue: Queue) -> Steps[Queue]:
        # models/job_attempt.py, hand_over: in one transaction.
        for number, run in alive(queue):
            executing = run.executing
            if executing is None or executing == run.claimed:
                continue
            words = f"run {number} claims {shown(executing.job)}, which takes long"
            left = run._replace(claimed=executing)
            all_written = self.all_written(queue, number, run)
            if (
                all_written is not None
                and self.holds_reservation(queue, number, executing)
                and self.may_start(all_written, executing)
            ):
                claim = Claim(number, batch=tuple(one.job for one in run.batch))
                claimed = all_written.with_job(executing.job, started_job(all_written.jobs[executing.job], claim))
                yield words, claimed.with_run(number, left._replace(ended=()))
            else:
                yield f"{words}; it is refused", queue.with_run(number, left)

    @step
    def renew(self, queue: Queue) -> Steps[Queue]:
        # models/job_attempt.py, renew, renew_claims: also late, if nobody has noticed.
        for number, _ in alive(queue):
            for at, job in enumerate(queue.jobs):
                if job.claim is not None and job.claim.run == number and job.claim.is_over:
                    renewed = job._replace(claim=job.claim._replace(is_over=False))
                    yield f"run {number} renews its claim of {shown(at)}", queue.with_job(at, renewed)

    @step
    def process_dies(self, queue: Queue) -> Steps[Queue]:
        for number, _ in alive(queue) if queue.faults else ():
            yield f"run {number} dies", queue.with_run(number, None).after_fault()

    @step
    def task_is_sent_again(self, queue: Queue) -> Steps[Queue]:
        if len(alive(queue)) < self.runs:
            yield "another task is sent", queue._replace(runs=(*queue.runs, Run()))

    # Time, and the dispatch

    @step
    def time_passes(self, queue: Queue) -> Steps[Queue]:
        for at, job in enumerate(queue.jobs):
            if job.waiting == "later":
                yield f"the time of {shown(at)} comes", queue.with_job(at, job._replace(waiting="now"))
            if job.reserved is not None and not job.reserved.is_over:
                over = queue.with_job(at, job._replace(reserved=job.reserved._replace(is_over=True)))
                yield f"the reservation of {shown(at)} ends", over.with_lost_run(job.reserved.run)
            if (
                job.claim is not None
                and not job.claim.is_over
                and (queue.faults or queue.runs[job.claim.run] is None)
                and Reservation(job.claim.run) not in [other.reserved for other in queue.jobs]  # which ends earlier
            ):
                over = queue.with_job(at, job._replace(claim=job.claim._replace(is_over=True)))
                is_dead = queue.runs[job.claim.run] is None
                yield f"the lease of {shown(at)} ends", over if is_dead else over.after_fault()

    @step
    def reap(self, queue: Queue) -> Steps[Queue]:
        # models/job_attempt.py, reap: by a dispatch after the end of the lease, or by the worker of a dead process.
        for at, job in enumerate(queue.jobs):
            if job.claim is not None and self.is_lost(queue, job.claim):
                ended = ended_job(job, "canceled" if job.claim.is_canceled else "failure")
                ended = ended._replace(losses=job.losses, is_alone=job.is_alone)
                if ended.state == "failure":
                    ended = ended._replace(losses=job.losses + 1, waiting="later" if job.losses else "now")
                reaped = queue.with_job(at, ended)
                reaped = reaped.with_lost_run(job.claim.run)
                for other in job.claim.batch:
                    mate = queue.jobs[other]
                    if mate.reserved is not None and mate.reserved.run == job.claim.run:
                        reaped = reaped.with_job(other, mate._replace(reserved=None, is_alone=True))
                yield f"{shown(at)} is found lost", reaped

    @step
    def takeover(self, queue: Queue) -> Steps[Queue]:
        if queue.operations and any(job.state == "failure" for job in queue.jobs):
            due = tuple(job._replace(waiting="now") if self.may_make_due(job) else job for job in queue.jobs)
            yield "a new leader makes failed jobs due", queue._replace(jobs=due, operations=queue.operations - 1)

    # Operators

    @step
    def operate(self, queue: Queue) -> Steps[Queue]:
        # models/job_operations.py
        for at, job in enumerate(queue.jobs):
            if not queue.operations or job.state == "deleted":
                continue
            left = queue._replace(operations=queue.operations - 1)
            if job.claim is not None and not job.claim.is_canceled:
                asked = job._replace(claim=job.claim._replace(is_canceled=True), is_canceled=True)
                yield f"an operator cancels {shown(at)}", left.with_job(at, asked)
            if job.state == "executing" or not self.may_change(job):
                continue
            if job.state in ("pending", "failure"):
                canceled = self.changed(job)._replace(state="canceled", waiting="never", is_canceled=True)
                yield f"an operator cancels {shown(at)}", left.with_job(at, canceled)
            due = self.changed(job)._replace(state="pending", waiting="now", is_canceled=False, has_succeeded=False)
            yield f"an operator retries {shown(at)}", left.with_job(at, due)
            yield f"an operator removes {shown(at)}", left.with_job(at, Job(state="deleted", waiting="never"))

    # What must hold

    @invariant
    def one_is_executing(self, queue: Queue) -> bool:
        return sum(job.state == "executing" for job in queue.jobs) <= 1

    @invariant
    def state_and_fields_agree(self, queue: Queue) -> bool:
        return all(
            (job.claim is not None) == (job.state == "executing")
            and (job.waiting == "never" or job.state in ("pending", "failure"))
            and (job.waiting != "never" or job.state != "pending")
            for job in queue.jobs
        )

    @invariant
    def outcome_is_refused_only_after_a_loss(self, queue: Queue) -> bool:
        """Or after an operator has changed the job."""
        return queue.operations < self.operations or all(
            run.is_lost or all(self.outcome_to_write(queue, number, ended) for ended in run.ended)
            for number, run in alive(queue)
        )

    @invariant
    def suspects_run_alone(self, queue: Queue) -> bool:
        return not any(job.reserved is not None and job.is_alone for job in queue.jobs)

    @invariant
    def success_is_final(self, queue: Queue) -> bool:
        return all(not job.has_succeeded or job.state == "success" for job in queue.jobs)

    @invariant
    def canceled_never_waits_again(self, queue: Queue) -> bool:
        return all(not job.is_canceled or job.state not in ("pending", "failure") for job in queue.jobs)

    def is_settled(self, queue: Queue) -> bool:
        return all(job.state != "executing" and job.waiting == "never" for job in queue.jobs)

    # The rules that protect the invariants

    def may_share(self, queue: Queue, first: int, other: int) -> bool:
        """runner.py, _may_share"""
        return not any(queue.jobs[at].is_alone or queue.jobs[at].losses for at in (first, other))

    def is_unchanged(self, queue: Queue, read: Read) -> bool:
        job = queue.jobs[read.job]
        return job.waiting == "now" and job.attempts == read.attempts

    def may_start(self, queue: Queue, read: Read) -> bool:
        return self.is_unchanged(queue, read) and not any(job.state == "executing" for job in queue.jobs)

    def may_reserve(self, queue: Queue, number: int, read: Read) -> bool:
        job = queue.jobs[read.job]
        is_of_another = job.reserved is not None and not job.reserved.is_over and job.reserved.run != number
        return self.is_unchanged(queue, read) and not job.is_alone and not is_of_another

    def may_change(self, job: Job) -> bool:
        """job_attempt.py, not_reserved"""
        return job.reserved is None or job.reserved.is_over

    def may_make_due(self, job: Job) -> bool:
        """job.py, make_failed_due"""
        return job.state == "failure"

    def changed(self, job: Job) -> Job:
        """Return a job as an operator leaves it: a run whose reservation has ended may still execute it."""
        return job._replace(reserved=None)

    def is_lost(self, queue: Queue, claim: Claim) -> bool:
        return claim.is_over or queue.runs[claim.run] is None

    def next_outcome(self, run: Run) -> Ended:
        """runner.py, _finish_and_start: until the claimed one is written, nobody else starts a reserved one."""
        return min(run.ended)

    def holds_claim(self, queue: Queue, number: int, read: Read) -> bool:
        job = queue.jobs[read.job]
        return job.claim is not None and job.claim.run == number and job.attempts == read.attempts + 1

    def holds_reservation(self, queue: Queue, number: int, read: Read) -> bool:
        job = queue.jobs[read.job]
        return job.reserved is not None and job.reserved.run == number and job.attempts == read.attempts

    def outcome_to_write(self, queue: Queue, number: int, ended: Ended) -> Outcome | None:
        """Return the outcome that is written; None if the run does not hold the job."""
        if self.holds_claim(queue, number, ended.read):
            claim = queue.jobs[ended.read.job].claim
            may_run_again = ended.outcome not in ("success", "canceled")
            return "canceled" if may_run_again and claim is not None and claim.is_canceled else ended.outcome
        return ended.outcome if self.holds_reservation(queue, number, ended.read) else None

    # Parts of steps

    def ended(self, queue: Queue, number: int, run: Run, outcome: Outcome) -> Queue:
        assert run.executing is not None
        ended = Ended(run.executing == run.claimed, run.executing, outcome)
        return queue.with_run(number, run._replace(executing=None, ended=tuple(sorted((*run.ended, ended)))))

    def written(self, queue: Queue, at: int, outcome: Outcome) -> Queue:
        return queue.with_job(at, ended_job(queue.jobs[at], outcome))

    def all_written(self, queue: Queue, number: int, run: Run) -> Queue | None:
        """Return the state with all outcomes of a run; None if one is refused."""
        for ended in run.ended:
            if (outcome := self.outcome_to_write(queue, number, ended)) is None:
                return None
            queue = self.written(queue, ended.read.job, outcome)
        return queue


def alive(queue: Queue) -> list[tuple[int, Run]]:
    return [(number, run) for number, run in enumerate(queue.runs) if run is not None]


def started_job(job: Job, claim: Claim) -> Job:
    """job_attempt.py, _start"""
    return job._replace(state="executing", waiting="never", attempts=job.attempts + 1, claim=claim, reserved=None)


def ended_job(job: Job, outcome: Outcome) -> Job:
    """job_attempt.py, _finish and _end"""
    attempts = job.attempts + (0 if job.claim is not None else 1)
    ended = job._replace(claim=None, reserved=None, is_alone=False, losses=0, attempts=attempts)
    if outcome == "success":
        return ended._replace(state="success", waiting="never", has_succeeded=True)
    if outcome == "canceled":
        return ended._replace(state="canceled", waiting="never")
    if outcome == "interrupted":
        return ended._replace(state="pending", waiting="now")
    return ended._replace(state="failure", waiting="later" if outcome == "failure" else "never")


def shown(*numbers: int, batch: tuple[int, ...] = ()) -> str:
    return " and ".join(f"job {number}" for number in numbers) + "".join(f", before job {number}" for number in batch)
