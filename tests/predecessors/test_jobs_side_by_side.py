"""SteveJobs and Queue Manager at work in the same `jobs_data`, as real processes: name by name, and back again."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.e2e.commands import queue_manager
from tests.e2e.job_names import CONSECUTIVE
from tests.e2e.job_processes import ENV, count, job_beat, job_lab, job_worker, notes
from tests.eventually import eventually
from tests.predecessors.node_process import NodeProcess, node
from tests.real_servers import Servers

pytestmark = pytest.mark.node

THEIRS, OURS = CONSECUTIVE[:2]


def steve_jobs(name: str, servers: Servers, *, new_jobs: int = 0) -> AbstractContextManager[NodeProcess]:
    return node("steve_jobs.mjs", name, str(new_jobs), MONGO_DB_URL=servers.mongo.url)


def runs() -> Counter[str]:
    """Return how many times Queue Manager has run each job."""
    return Counter(str(note["job"]) for note in notes())


def test_each_job_is_run_once_side_by_side_after_the_adoption_and_back_again(clean: Servers, tmp_path: Path) -> None:
    lab = job_lab()
    with job_worker(tmp_path), job_beat(tmp_path):
        ours = {lab.run(OURS) for _ in range(10)}
        eventually(lambda: {*runs()} == ours)
        with steve_jobs(THEIRS, clean, new_jobs=60) as application:
            ours |= {lab.run(OURS) for _ in range(10)}
            theirs = [application.next() for _ in range(5)]
        theirs += application.rest()  # it was killed while it ran a job
        eventually(lambda: {*runs()} == ours)

        adopted = queue_manager("adopt", "jobs", THEIRS, "--yes", cwd=tmp_path, **ENV)
        assert adopted.stdout.endswith("60 adopted\n")
        eventually(lambda: count("success") == 80, within=120)
        assert {*runs().values()} == {1}
        assert not {*theirs} & {*runs()}
        assert 80 - len(theirs) - len(runs()) in (0, 1)  # it may have been killed before it printed the last one

        assert queue_manager("jobs", "pause", THEIRS, cwd=tmp_path, **ENV).returncode == 0
        last = {lab.run(THEIRS) for _ in range(5)}
        eventually(lambda: count("executing", THEIRS) == 0)
        with steve_jobs(THEIRS, clean) as application:
            assert {application.next() for _ in last} == last
        assert {lab.state(id) for id in last} == {"success"}
        assert not last & {*runs()}
