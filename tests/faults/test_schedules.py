"""A few schedules of random faults: `make faults` runs many."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.e2e.celery_processes import ROOT
from tests.e2e.commands import environment

pytestmark = [pytest.mark.crash, pytest.mark.timeout(630)]  # twenty processes are started


@pytest.mark.smoke
def test_two_fault_schedules_break_no_guarantee() -> None:
    command = [sys.executable, "-m", "tests.faults", "--schedules", "2", "--seed", "102"]
    run = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 schedules" in run.stdout
    assert re.search(r"\b[1-9]\d* faults\b", run.stdout), run.stdout  # some are possible on every machine
    assert "0 violations" in run.stdout
