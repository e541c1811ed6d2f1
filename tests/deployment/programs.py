"""Programs of Debian packages that the tests of `deploy/` run."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str, *, package: str) -> str:
    """Return the path of a program. Without it the test fails, and names the package to install."""
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if path is None:
        pytest.fail(f"{name} is not installed: apt-get install {package}")
    return path


def replaced(text: str, replacements: dict[str, str]) -> str:
    """Return a file of `deploy/` with the values of this machine. Each text to replace must occur exactly once."""
    for old, new in replacements.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
