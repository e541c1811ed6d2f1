# ruff: noqa: UP032 -- no f-strings: an old Python must be able to read this far and say that it is old
"""What this machine must have before anything can be installed; run by the Makefile with the system's Python.

Prints each thing that is missing with the command that installs it, and exits with 1. Standard library
only, and no syntax that an older Python 3 could not read.
"""

import ctypes
import os
import re
import shutil
import subprocess
import sys

OLDEST = (3, 11)
OLDEST_MONGODB = 6
LIBCURL = "libcurl.so.4"


def can_make_venv() -> bool:
    try:
        import ensurepip
        import venv  # noqa: F401

        ensurepip.version()  # a distribution may leave an empty folder of that name behind
    except (ImportError, AttributeError):
        return False
    return True


def can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def has_mongod() -> bool:
    """Return True if the mongod on PATH is new enough, so that none is started from the wheel."""
    path = shutil.which("mongod")
    if path is None:
        return False
    printed = subprocess.Popen([path, "--version"], stdout=subprocess.PIPE).communicate()[0].decode()
    version = re.search(r"v(\d+)\.", printed)
    return version is not None and int(version.group(1)) >= OLDEST_MONGODB


def names_mongodb() -> bool:
    """Return True if the environment, or else `.env`, has a MONGO_DB_URL that is not empty."""
    if "MONGO_DB_URL" in os.environ:
        return os.environ["MONGO_DB_URL"] != ""
    try:
        with open(".env", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return False
    return re.search(r"^[ \t]*(export[ \t]+)?MONGO_DB_URL[ \t]*=[ \t]*[\"']?[^\s\"'#]", text, re.MULTILINE) is not None


def problem_with_python(version: tuple) -> str:  # type: ignore[type-arg]
    """Return what is wrong with this Python's version, or an empty text."""
    if tuple(version[:2]) >= OLDEST:
        return ""
    return (
        "Python {}.{} or newer is needed, and {} is {}.{}.\n"
        "    Install one (Debian, Ubuntu: apt install python3.11 python3.11-venv)\n"
        "    and name it: make up PYTHON=python3.11"
    ).format(OLDEST[0], OLDEST[1], sys.executable, version[0], version[1])


def problem_with_venv() -> str:
    """Return what keeps this Python from making a virtual environment, or an empty text."""
    if can_make_venv():
        return ""
    return (
        "Python's venv is not complete: it is needed to install everything else into .venv.\n"
        "    Debian, Ubuntu: apt install python3-venv"
    )


def problem_with_libcurl() -> str:
    """Return why the MongoDB of the extra `embedded` could not start, or an empty text."""
    is_another_used = os.environ.get("QM_MONGOD_BIN") or names_mongodb() or has_mongod()
    if not sys.platform.startswith("linux") or is_another_used or can_load(LIBCURL):
        return ""
    return (
        "{} is missing: the MongoDB that is started for you needs it.\n"
        "    Debian, Ubuntu: apt install libcurl4\n"
        "    Or use your own MongoDB: set QM_MONGOD_BIN to a mongod, or MONGO_DB_URL to a running one."
    ).format(LIBCURL)


def main() -> int:
    # The rest would only confuse when Python itself is too old.
    python = problem_with_python(sys.version_info)
    problems = [python] if python else [problem_with_venv(), problem_with_libcurl()]
    found = [problem for problem in problems if problem]
    for problem in found:
        sys.stderr.write("Missing: {}\n".format(problem))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
