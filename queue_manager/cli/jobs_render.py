"""How jobs look on a terminal. Nothing that an application wrote reaches it as a control character or as markup."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from models.job import State
from queue_manager.cli.messages_render import LONGEST_LINE, PREVIEW, printable, span
from services.job_queues import as_json

Job = dict[str, Any]
WAITING = (State.PENDING, State.FAILURE)


def table_of(jobs: Sequence[Job], now: datetime) -> Table:
    """Return jobs, one a row, with times from `now`."""
    table = _table("id", "name", "state", *(numbers := ("priority", "attempts", "due")), "last error", numbers=numbers)
    table.add_column("arguments", overflow="ellipsis", no_wrap=True, ratio=1, style="dim")
    for job in jobs:
        known = [str(job["_id"]), job["name"], job["state"], str(job["priority"]), str(job["attempts"])]
        due = _from(job["due"], now) if job["state"] in WAITING else ""
        error = str(job.get("last_error", ""))[:PREVIEW] if job["state"] == State.FAILURE else ""
        _add(table, *known, due, error, _text(as_json(job)["arguments"])[:LONGEST_LINE])
    return table


def print_job(console: Console, job: Job) -> None:
    """Print everything of one job, a field a line, and what happened to it."""
    shown = as_json(job)
    history = shown.pop("history") if _has_entries(shown.get("history")) else []
    for name, value in shown.items():
        said = value if isinstance(value, str) else _text(value)
        console.print(Text.assemble((f"{printable(name):<12}", "bold"), printable(said)), soft_wrap=True)
    console.print(Text("history", "bold"))
    for entry in history:
        said = "  ".join(f"{name} {value}" for name, value in entry.items() if name not in ("at", "state"))
        line = f"  {entry.get('at', '')}  {entry.get('state', '')!s:<9}  {said}"
        console.print(Text(printable(line.rstrip())), soft_wrap=True)


def _has_entries(history: Any) -> bool:
    """Return True if a history, which another program may have written, is a list of documents."""
    return isinstance(history, list) and all(isinstance(entry, dict) for entry in history)


def print_status(console: Console, status: dict[str, Any], now: datetime) -> None:
    """Print the leader, and each queue in a row."""
    leader = status["leader"]
    if leader is None:
        said = "no leader has handed out jobs yet: they need `celery beat` and workers with QM_JOBS=true"
    else:
        heard, since = _ago(leader["heartbeat"], now), _ago(leader["since"], now)
        said = f"leader of epoch {leader['epoch']}, last heartbeat {heard}, took over {since}"
    console.print(Text(said), soft_wrap=True)
    if others := status["other_documents"]:
        console.print(f"{others} documents of another form, which are left alone")
    if not status["queues"]:
        console.print("no queue")
        return
    states = tuple(state.value for state in State)
    table = _table("name", *states, "running", "oldest due", "next due", numbers=states)
    for queue in status["queues"]:
        name = f"{queue['name']} (paused)" if queue["is_paused"] else queue["name"]
        counts = [str(queue["states"][state]) for state in states]
        due = [_from(queue[name], now) if queue[name] else "" for name in ("oldest_due", "next_due")]
        _add(table, name, *counts, _running(queue["running"], now), *due)
    console.print(table)


def _running(running: Job | None, now: datetime) -> str:
    if running is None:
        return ""
    left = (running["claimed_until"] - now).total_seconds()
    where = f" on {running['worker']}" if "worker" in running else ""
    return f"{running['id']}{where}, lease {f'{left:.0f} s' if left > 0 else 'over'}"


def _table(*titles: str, numbers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for title in titles:
        is_number = title in numbers
        table.add_column(title, overflow="fold", justify="right" if is_number else "left", no_wrap=is_number)
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(printable(cell)) for cell in cells))


def _from(moment: datetime, now: datetime) -> str:
    left = (moment - now).total_seconds()
    return f"in {span(left)}" if left > 0 else _ago(moment, now)


def _ago(moment: datetime, now: datetime) -> str:
    return f"{span((now - moment).total_seconds())} ago"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
