"""`queue-manager workers`: the workers that are online, and what each of their processes does."""

from __future__ import annotations

from datetime import datetime

from queue_manager.cli.terminal import AnswerJsonOption, print_answer, print_line
from queue_manager.operations.workers import OneWorker, Workers, WorkerTask, read_workers

MEGABYTE = 1_000_000


def workers(as_json: AnswerJsonOption = False) -> None:
    """Show the workers that are online, and what they execute.

    Shows queues, pool, rate, memory and version; of each process what it executes, and for how long. Names the queues
    that no worker consumes.

    Example: `queue-manager workers --json`
    """
    found = read_workers()
    if as_json:
        print_answer(found)
    else:
        _print(found)


def _print(found: Workers) -> None:
    for worker in found.workers:
        _print_worker(worker, found.server_time)
    if found.count > len(found.workers):
        print_line(f"{len(found.workers)} of {found.count} workers")
    if not found.workers:
        print_line("No workers are online.")
    for one in found.queues_without_worker:
        print_line((f"No worker consumes the queue {one.queue} ({one.title}).", "red"))


def _print_worker(worker: OneWorker, now: datetime) -> None:
    print_line((worker.name, "bold"), f"  {_state(worker, now)}")
    if worker.paused is not None:
        print_line((f"  takes no items: {worker.paused}", "red"))
    queues = "unknown" if worker.queues is None else ", ".join(worker.queues)
    print_line(f"  queues: {queues}")
    for process in worker.processes:
        memory = _memory(process.memory_bytes)
        for task in process.running:
            print_line(f"  {process.pid}  {memory}  {_doing(task, now)}")
        if not process.running:
            print_line((f"  {process.pid}  {memory}  idle", "dim"))


def _state(worker: OneWorker, now: datetime) -> str:
    release = f"version {worker.release or 'before 0.2'}"
    seen = f"seen {_seconds(worker.seen_at, now)} ago"
    if worker.pool is None:
        return f"pid {worker.pid}, {release}, {seen}"
    pool = f"{worker.pool}, {worker.busy} of {worker.size} busy"
    rate = f"{worker.done_per_minute} done/min"
    return ", ".join((f"pid {worker.pid}", pool, rate, _memory(worker.memory_bytes), release, seen))


def _doing(task: WorkerTask, now: datetime) -> str:
    parts = (f"{task.tasks} items" if task.tasks > 1 else "", task.job_name or "", task.item or "", task.task or "")
    return f"{' '.join(filter(None, parts))}  for {_seconds(task.since, now)}"


def _seconds(since: datetime, now: datetime) -> str:
    return f"{max((now - since).total_seconds(), 0):.1f} s"


def _memory(value: int | None) -> str:
    return "- MB" if value is None else f"{value / MEGABYTE:.0f} MB"
