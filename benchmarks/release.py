"""Earlier releases, to compare with and to run alongside."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
RELEASE, VERSION = "ours of 0.1", "0.1.1"
LATEST = "0.2.0"
MISSING = f"the history of this clone does not reach back to release {VERSION}: git fetch --unshallow --tags"


@contextmanager
def checked_out(version: str = VERSION) -> Iterator[Path | None]:
    """Yield a directory with the files of a release while the block runs; `None` in a clone without its history."""
    with TemporaryDirectory(prefix=f"queue-manager-{version}-") as directory:
        archive = subprocess.run(["git", "-C", ROOT, "archive", _commit(version)], capture_output=True, check=False)
        if archive.returncode:
            yield None
            return
        subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)
        yield Path(directory)


def _commit(version: str) -> str:
    """Return the tag of a release; in a clone without tags, the commit that dated it in the changelog."""
    tag = f"v{version}"
    if _git("tag", "--list", tag):
        return tag
    # The commit where the history of a shallow clone begins has no parent, and seems to add every file.
    options = ("--min-parents=1", "--format=%H", f"-S\n## [{version}] - ")
    *_, first = _git("log", *options, "--", "CHANGELOG.md") or [tag]
    return first


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.split()
