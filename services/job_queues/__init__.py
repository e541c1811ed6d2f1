"""Named job queues: jobs of one name run one after another, names run concurrently, failed jobs are retried.

    @job("send_invoice")
    def send_invoice(invoice_id): ...

    jobs.run("send_invoice", "42", delay=timedelta(minutes=5))

Guarantee: a job is stored before `run` returns, is retried until it succeeds or is canceled, and is recorded as
successful once. At most one job of a name is executing, under a lease that its worker renews. A job whose worker died
runs again, so it must be idempotent.
Options: `JOBS_TIMER_MS` (5000), `JOBS_LEASE_SECONDS` (30), `JOBS_RETENTION_DAYS` (0, keeps finished jobs),
`JOBS_IMPORTS` (the modules that register jobs).

The life of a job, and the module of each step:

    stored      `jobs`: `pending` in MongoDB, due now or later (`models/job.py` has its fields, states and indexes)
    dispatched  `dispatch`: every few seconds, the leader sends one message for each name that has a due job
    run         `runner`: a worker runs the due jobs of that name: `executing`, then `success` or `failure`
    limited     `job_run`: the function sees that it should stop; `dispatch`: the worker's main process kills it
    repeated    `runner`: a repeating job that succeeded is `pending` again (`repetition` has its due times, and stores
                the jobs that code declares)
    retried     `runner`: a failed job is due again after a backoff; `dispatch`: a job whose worker was lost, once its
                lease has expired, and every failed job when a new leader takes over
    counted     `attempt_counts`: each attempt that ended, in Redis
    adopted     `adoption`: documents of the JavaScript package become jobs, by an operator
    read        `jobs`: one job, pages, search; `stats`: the numbers and problems that the dashboard shows
"""

from __future__ import annotations

from models.job import DuplicateJob
from services.job_queues.adoption import Adoption, adopt
from services.job_queues.attempt_counts import JOBS_INITIATOR, counts_by_name
from services.job_queues.dispatch import dispatch, stats, system
from services.job_queues.fields import InvalidJob, as_json, changeable
from services.job_queues.job_run import JobCancelled, JobRun
from services.job_queues.jobs import Jobs, WrongState, jobs
from services.job_queues.registry import UnknownJob, job, registry
from services.job_queues.stats import executing_by_task, jobs_by_state

__all__ = [
    "JOBS_INITIATOR",
    "Adoption",
    "DuplicateJob",
    "InvalidJob",
    "JobCancelled",
    "JobRun",
    "Jobs",
    "UnknownJob",
    "WrongState",
    "adopt",
    "as_json",
    "changeable",
    "counts_by_name",
    "dispatch",
    "executing_by_task",
    "job",
    "jobs",
    "jobs_by_state",
    "registry",
    "stats",
    "system",
]
