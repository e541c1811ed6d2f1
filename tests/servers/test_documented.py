"""The documented user of Redis has every command of our scripts, also of those that no test of the user runs."""

from __future__ import annotations

import re

from tests.documented import block
from tests.test_architecture import ROOT

COMMAND_OF_SCRIPT = re.compile(r"\bp?call\('([A-Z]+)'")


def test_every_command_of_a_script_is_granted() -> None:
    granted = set(re.findall(r"\+([a-z]+)", block(0, heading="A Redis user with least privilege")))
    folders = [ROOT / name for name in ("queue_manager", "services", "tasks")]
    sources = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".lua")]
    used = {name.lower() for path in sources for name in COMMAND_OF_SCRIPT.findall(path.read_text())}
    assert len(used) > 40
    assert used - granted == set()
