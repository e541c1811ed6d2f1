"""The workers that are online, and what each of their processes does: for the API, the page and the command line."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import BaseModel, Field

from beat_schedule import systems
from models.executing_job import ExecutingJob
from queue_manager.core.errors import Unavailable
from queue_manager.core.json_types import Moment
from queue_manager.core.redis_client import time_of
from queue_manager.core.settings import settings
from queue_manager.server_calls import mongodb, redis_server
from queue_manager.system import SCANS_QUEUE, SCHEDULE_PAGE, System, item_queues
from queue_manager.telemetry import worker_heartbeats
from queue_manager.telemetry.worker_heartbeats import ActiveWorker, OnlineWorker, PoolProcess, RunningTask
from services import job_queues

MAX_WORKERS_SHOWN = 200


def queues_of(names: Collection[str]) -> set[str]:
    """Return the queues of these systems, and that of the scans of all."""
    return {SCANS_QUEUE, *(system.queue for system in systems() if system.name in names and system.queue)}


class WorkerTask(BaseModel):
    """What a process executes: a task, a job, or a batch of items of one system."""

    task: str | None = Field(description="The name of the Celery task; null if the key is not for its system.")
    task_id: str | None = Field(description="Its id; for a batch, the id of one of its tasks; null like `task`.")
    tasks: int = Field(description="The number of tasks that are executed together.")
    since: Moment = Field(description="When it began; for a job, when the attempt began.")
    system: str | None = Field(description="The system that it belongs to; null for a task of another program.")
    item: str | None = Field(description="The id of the item or job; null for a batch, a scan, and other tasks.")
    job_name: str | None = Field(description="The name of the job; null if it is not a job.")
    page: str | None = Field(description="The path of the page of the item or job, or else of the system.")

    def of_systems(self, names: Collection[str]) -> WorkerTask:
        """Return it if it belongs to one of these systems, and else only since when there is one."""
        if self.system in names:
            return self
        return WorkerTask(
            task=None, task_id=None, tasks=1, since=self.since, system=None, item=None, job_name=None, page=None
        )


class WorkerProcess(BaseModel):
    """A process of a pool. A pool of threads has one, which executes several tasks."""

    pid: int
    memory_bytes: int | None = Field(description="Resident memory, shared pages included; null if unknown.")
    running: list[WorkerTask] = Field(description="The tasks that it executes; empty while it is idle.")


@dataclass(frozen=True, kw_only=True)
class OneWorker(OnlineWorker):
    """A worker that is online. What an older release does not report is null."""

    reported_at: Annotated[
        Moment | None, Field(description="When it reported what it does: on a change, or once a minute.")
    ]
    pool: Annotated[str | None, Field(description="The kind of its pool, such as `prefork`.")]
    size: Annotated[
        int | None, Field(description="The maximum number of tasks, or batches, that it executes at the same time.")
    ]
    busy: Annotated[int | None, Field(description="The number of tasks, or batches, that it executes now.")]
    done_per_minute: Annotated[int | None, Field(description="Tasks that ended in the last minute, failures included.")]
    memory_bytes: Annotated[
        int | None, Field(description="Resident memory of all its processes, shared pages in each.")
    ]
    processes: Annotated[list[WorkerProcess], Field(description="The first 64 processes of its pool.")]


class QueueWithoutWorker(BaseModel):
    """A queue that no worker consumes."""

    queue: str
    title: str = Field(description="The title of the system whose items are sent to it, or `Scans`.")


class Workers(BaseModel):
    """The workers that are online, by name."""

    workers: list[OneWorker] = Field(description="The first 200.")
    count: int = Field(description="The number of workers.")
    queues_without_worker: list[QueueWithoutWorker] = Field(
        description="Queues of systems that are on; empty if a worker does not report its queues."
    )
    server_time: Moment = Field(description="The time of Redis when the response was made.")

    def of_systems(self, names: Collection[str]) -> Workers:
        """Return the workers that may execute what belongs to these systems, without what others have."""
        queues = queues_of(names)
        workers = [
            replace(
                one.with_queues(queues),
                processes=[
                    process.model_copy(update={"running": [task.of_systems(names) for task in process.running]})
                    for process in one.processes
                ],
            )
            for one in self.workers
            if one.queues is None or not queues.isdisjoint(one.queues)
        ]
        unconsumed = [one for one in self.queues_without_worker if one.queue in queues]
        return self.model_copy(update={"workers": workers, "count": len(workers), "queues_without_worker": unconsumed})


def read_workers() -> Workers:
    """Return the workers. While MongoDB is unavailable, jobs are shown without their ids.

    Raises:
        Unavailable: Redis does not answer.
    """
    with redis_server() as client:
        now = time_of(client.time())
        online = worker_heartbeats.active(client)
    shown = online[:MAX_WORKERS_SHOWN]
    executing = _executing_jobs(shown)
    return Workers(
        workers=[_worker(one, executing) for one in shown],
        count=len(online),
        queues_without_worker=list(_queues_without_worker(online)),
        server_time=now,
    )


def _queues_without_worker(online: Sequence[ActiveWorker]) -> Iterator[QueueWithoutWorker]:
    on = [system for system in systems() if system.is_on(settings())]
    titles = {system.queue: system.title for system in on}
    queues = [SCANS_QUEUE, *item_queues(on)] if on else []
    for queue in worker_heartbeats.unconsumed([one.worker for one in online], queues):
        yield QueueWithoutWorker(queue=queue, title=titles.get(queue, "Scans"))


def _executing_jobs(online: Sequence[ActiveWorker]) -> Mapping[str, ExecutingJob]:
    """Return the executing jobs by the ids of the tasks that execute them; none while MongoDB is unavailable."""
    tasks = [task for one in online if one.activity for process in one.activity.processes for task in process.running]
    runs = [task.id for task in tasks if task.task == job_queues.system.item_task]
    try:
        with mongodb():
            return job_queues.executing_by_task(runs)
    except Unavailable:
        return {}


def _worker(one: ActiveWorker, jobs: Mapping[str, ExecutingJob]) -> OneWorker:
    worker, activity, at = one.worker, one.activity, one.activity_at
    processes = [] if activity is None else activity.processes
    return OneWorker(
        **vars(worker),
        reported_at=at,
        pool=None if activity is None else activity.pool,
        size=None if activity is None else activity.size,
        busy=None if activity is None else activity.busy,
        done_per_minute=None if activity is None else activity.done_per_minute,
        memory_bytes=None if activity is None else _memory(worker.pid, activity.memory_bytes, processes),
        processes=[] if at is None else [_process(process, at, jobs) for process in processes],
    )


def _memory(pid: int, of_main: int | None, processes: Sequence[PoolProcess]) -> int | None:
    if of_main is None:
        return None
    return of_main + sum(process.memory_bytes or 0 for process in processes if process.pid != pid)


def _process(process: PoolProcess, at: datetime, jobs: Mapping[str, ExecutingJob]) -> WorkerProcess:
    running = [_task(task, at - timedelta(milliseconds=task.elapsed_ms), jobs.get(task.id)) for task in process.running]
    return WorkerProcess(pid=process.pid, memory_bytes=process.memory_bytes, running=running)


def _task(running: RunningTask, since: datetime, job: ExecutingJob | None) -> WorkerTask:
    system = _system_of(running.task)
    item, page = running.item, None
    if system is job_queues.system:
        item = None if job is None else str(job.id)
    if system is not None:
        page = system.page if item is None or system.page == SCHEDULE_PAGE else system.page_of_item(item)
    return WorkerTask(
        task=running.task,
        task_id=running.id,
        tasks=running.tasks,
        since=since if job is None else job.since,
        system=None if system is None else system.name,
        item=item,
        job_name=running.item if system is job_queues.system else None,
        page=page,
    )


def _system_of(task: str) -> System | None:
    return next((system for system in systems() if task in (system.item_task, system.scan_task)), None)
