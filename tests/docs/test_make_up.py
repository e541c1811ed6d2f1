"""`make up` as the README and the tutorial have it, from a fresh checkout: it installs, starts, works and stops."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.deployment.installation import ROOT
from tests.documented import DOCS, block
from tests.eventually import eventually

pytestmark = pytest.mark.processes

TUTORIAL = DOCS / "tutorial.md"
FIRST_JOB = DOCS / "tutorials/first-job.md"
LEFT_OUT = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "node_modules", "__pycache__", "tests")


def test_the_commands_of_the_pages_start_everything(tmp_path: Path) -> None:
    clone, log = tmp_path / "queue-manager", tmp_path / "log"
    shutil.copytree(ROOT, clone, ignore=LEFT_OUT)
    from_readme, *_ = block(0, page=ROOT / "README.md").splitlines()
    assert block(0, heading="1. Start everything", page=TUTORIAL).split() == from_readme.partition("#")[0].split()
    with started(from_readme, clone, log) as port:
        eventually(lambda: system(port, "support-snooze")["done_per_minute"], within=120)
        run_demo_job = "JOBS_IMPORTS=dev.demo_jobs queue-manager jobs run demo.send_invoice 1"
        assert run_demo_job in TUTORIAL.read_text()
        assert '"name": "demo.send_invoice"' in second_terminal(clone, run_demo_job)
        health = second_terminal(clone, "queue-manager health")
        assert not [text for text in ("no system is switched on", "MANAGED_SUBSCRIPTIONS") if text in health]
        assert "job-queues  " in health
    assert log.read_text().endswith("stopped\n")

    file = tmp_path / "trial" / "billing" / "trial_end.py"
    file.parent.mkdir(parents=True)
    file.write_text(block(1, heading="2. Declare a system", page=TUTORIAL))
    with started(block(0, heading="3. Run it", page=TUTORIAL), clone, log) as port:
        eventually(lambda: system(port, "trial-end")["last_scan"], within=120)
        assert system(port, "trial-end")["title"] == "Trials"
        assert "trial-end" in second_terminal(clone, "queue-manager systems status trial-end")
    assert log.read_text().endswith("stopped\n")

    file = tmp_path / "jobs" / "invoices.py"
    file.parent.mkdir()
    file.write_text(block(0, heading="1. Write the function", page=FIRST_JOB))
    with started(block(0, heading="2. Start the processes", page=FIRST_JOB), clone, log) as port:
        eventually(lambda: system(port, "job-queues"), within=120)
        job = json.loads(second_terminal(clone, "queue-manager jobs run send_invoice 42"))
        eventually(lambda: request(f"{port}/api/jobs/{job['_id']}")["job"]["state"] == "success", within=120)
    assert log.read_text().endswith("stopped\n")


@contextmanager
def started(command: str, clone: Path, log: Path) -> Iterator[str]:
    """Run a command of the shell in the clone; yield the address of the dashboard; press Ctrl-C."""
    with log.open("wb") as output:
        running = subprocess.Popen(
            ["bash", "-c", command],
            cwd=clone,
            env=own_environment(clone),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        found = eventually(lambda: re.search(r"^Dashboard +(http\S+)$", log.read_text(), re.MULTILINE), within=240)
        yield found[1]
        os.killpg(running.pid, signal.SIGINT)
        running.wait(30)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)


def own_environment(clone: Path) -> dict[str, str]:
    ours = ("QM_", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not (name.endswith("_URL") or name.startswith(ours))}
    return {**kept, "HOME": str(clone.parent)}


def second_terminal(clone: Path, command: str) -> str:
    """Return what a command prints in a shell that is set up as the tutorial shows."""
    script = f"{block(1, heading='1. Start everything', page=TUTORIAL)}\n{command}"
    ran = subprocess.run(
        ["bash", "-c", script], cwd=clone, env=own_environment(clone), capture_output=True, text=True, timeout=120
    )
    return ran.stdout + ran.stderr


def request(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"content-type": "application/json"}), timeout=10) as answer:
        return json.load(answer)


def system(dashboard: str, name: str) -> Any:
    try:
        overview = request(f"{dashboard}/api/overview")
    except (URLError, ConnectionError) as error:
        raise AssertionError(error) from error  # not yet
    return next(one for one in overview["systems"] if one["name"] == name)
