"""The screen of `make up`: its lines, and which log lines are shown as warnings."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from dev.display import Display
from dev.output import LogFiles, warning_in
from dev.run_status import MAX_KEPT, MAX_START, Entry, ProcessStatus, RunStatus, State, lines
from queue_manager.core.clock import seconds

NOW = datetime(2026, 1, 2, 16, 20, 5)


def run_of(*processes: ProcessStatus) -> RunStatus:
    run = RunStatus(logs=".devstack/logs", addresses={"Dashboard": "http://127.0.0.1:6002", "Redis": "redis://***@r/0"})
    run.processes = {process.name: process for process in processes}
    return run


def shown(run: RunStatus, *, height: int = 24, now: datetime = NOW) -> list[str]:
    return [line.plain for line in lines(run, now=now, height=height)]


class TestLines:
    def test_addresses_are_first_and_the_log_directory_last(self) -> None:
        run = run_of(ProcessStatus("web", NOW, State.RUNNING))
        run.events.append(Entry(NOW, "3 rooms opened"))
        run.warn("jobs: Job failed", NOW)
        assert shown(run, height=11) == [
            "Queue Manager  Ctrl-C stops everything",
            "Dashboard  http://127.0.0.1:6002",
            "Redis      redis://***@r/0",
            "",
            "web  running since 16:20:05",
            "What happens",
            "16:20:05 3 rooms opened",
            "Warnings",
            "16:20:05 jobs: Job failed",
            "",
            "Logs: .devstack/logs/<process>.log, or make up LOGS=1",
        ]

    def test_state_of_a_process_is_shown(self) -> None:
        reason = "exited with 2; starts again in 4 s: MONGO_DB_URL is missing"
        run = run_of(
            ProcessStatus("worker", NOW, State.RUNNING, restarts=1),
            ProcessStatus("web", NOW, State.FAILED, restarts=2, reason=reason),
            ProcessStatus("beat", NOW, State.STOPPED, reason="exited with 0"),
            ProcessStatus("demo", NOW),
        )
        assert shown(run)[4:8] == [
            "worker  running since 16:20:05, restarted once",
            f"web     failed, restarted 2 times: {reason}",
            "beat    stopped: exited with 0",
            "demo    waiting",
        ]

    def test_a_process_without_a_ready_line_counts_as_running_after_a_while(self) -> None:
        run = run_of(ProcessStatus("web", NOW, State.STARTING))
        assert shown(run, now=NOW + MAX_START)[4] == "web  starting"
        assert shown(run, now=NOW + MAX_START + seconds(1))[4] == "web  running since 16:20:05"

    @pytest.mark.parametrize("height", [1, 5, 8, 12, 24, 60])
    def test_a_screen_of_any_height_shows_the_newest_lines(self, height: int) -> None:
        run = run_of(ProcessStatus("web", NOW, State.RUNNING))
        for number in range(MAX_KEPT + 10):
            run.events.append(Entry(NOW, f"event {number}"))
            run.warn(f"{'x' * number} is too long", NOW)
        said = shown(run, height=height)
        assert len(said) == height
        assert ("16:20:05 event 59" in said) == any(line.startswith("What") for line in said) == (height > 7)

    def test_warnings_that_differ_only_in_numbers_and_values_are_counted(self) -> None:
        run = run_of()
        assert run.warn("jobs: Job 17 failed attempt=1 name=a", NOW)
        assert run.warn("jobs: Queue is full", NOW)
        assert not run.warn("jobs: Job 18 failed attempt=2 name=b", NOW + seconds(1))
        assert [str(entry) for entry in run.warnings] == [
            "16:20:05 jobs: Queue is full",
            "16:20:06 2 times: jobs: Job 18 failed attempt=2 name=b",
        ]

    def test_first_line_shows_that_the_run_is_stopping(self) -> None:
        run = run_of()
        run.is_stopping = True
        assert shown(run)[0] == "Queue Manager  stopping, in order; once more to stop at once"


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("16:08:31.4 [warning  ] MongoDB is unavailable attempt=2", "MongoDB is unavailable attempt=2"),
        ("16:08:31.4 [error    ] Job failed", "Job failed"),
        ("16:08:31.4 [info     ] scans@vm ready.", None),
        ('{"event": "Job failed", "level": "error"}', "Job failed"),
        ('{"event": "ready", "level": "info"}', None),
        ("{not JSON", None),
        ("[E 261122 16:08:30 web:9] Uncaught exception", "Uncaught exception"),
        ("[W 261122 16:08:30 inspector:98] Inspect method conf failed", None),
        ("platforms.py:893: SecurityWarning: You're running the worker with superuser privileges", None),
        (" -------------- jobs@vm v5.7.0 (collider)", None),
    ],
)
def test_warnings_are_distinguished_from_banners_and_progress(line: str, warning: str | None) -> None:
    assert warning_in(line) == warning


def test_log_files_begin_with_the_run_and_are_bounded(tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    LogFiles(directory).write("web", "of an earlier run")
    files = LogFiles(directory, max_bytes=100)
    for number in range(32):
        files.write("web", f"line {number:05}")
    assert sorted(path.name for path in directory.iterdir()) == ["web.log", "web.log.1"]
    assert all(path.stat().st_size < 120 for path in directory.iterdir())
    assert files.last_lines("web", 2) == ["line 00030", "line 00031"]
    assert files.last_lines("worker") == []


def test_an_end_is_a_warning_unless_it_was_requested() -> None:
    display = Display(run_of())
    display.expect(["worker", "web"])
    for name in ("worker", "web"):
        display.starting(name)
    display.ended("worker", "killed by SIGKILL; starts again in 1 s")
    display.starting("worker")
    display.ended("web", "exited with 0", is_final=True)
    assert [entry.text for entry in display.run.warnings] == ["worker: killed by SIGKILL; starts again in 1 s"]
    assert [(status.state, status.restarts) for status in display.run.processes.values()] == [
        (State.STARTING, 1),
        (State.STOPPED, 0),
    ]
