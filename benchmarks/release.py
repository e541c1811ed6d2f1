"""Release 0.1, to compare with."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
RELEASE, TAG = "ours of 0.1", "v0.1.1"


@contextmanager
def checked_out() -> Iterator[Path | None]:
    """Yield a directory with its files while the block runs; `None` where its tag is unknown."""
    with TemporaryDirectory(prefix="queue-manager-0.1-") as directory:
        archive = subprocess.run(["git", "-C", ROOT, "archive", TAG], capture_output=True, check=False)
        if archive.returncode:
            yield None
            return
        subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)
        yield Path(directory)
