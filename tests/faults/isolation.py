"""What only root can have: a network in which processes are cut off from one another, and disks that are small.

The run moves into a network and mounts of its own. Nothing outside can be reached from there, and nothing is left
when it is over. Each process that is to be cut off runs in a group of its own, by which the firewall knows it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TOOLS = ("unshare", "setpriv", "nft", "ip", "mount", "umount")
ENTERED = "FAULTS_ARE_ISOLATED"
GROUPS = range(50_000, 50_064)
LATER = 1_000  # added to the number of a group
CLONE_NEWNET = 0x40000000
BALLAST = "ballast"
BLOCK = 1 << 20

_groups: dict[str | int, int] = {}
_mounted: list[Path] = []

# Only what opens a connection is known by its group; the mark tells to which group an arriving packet belongs.
_FIREWALL = f"""
table inet faults {{
  map groups {{ type gid : mark; elements = {{ {", ".join(f"{group} : {group}" for group in GROUPS)} }}; }}
  set blocked {{ type mark . inet_service; }}
  chain out {{
    type filter hook output priority 0;
    ct state new ct mark set meta skgid map @groups;
    ct mark . tcp dport @blocked drop;
  }}
  chain in {{ type filter hook input priority 0; ct mark . tcp sport @blocked drop; }}
}}
"""


def obstacle() -> str | None:
    """Return why a run cannot be isolated on this machine."""
    if os.geteuid() != 0:
        return "this is not root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"there is no {', '.join(missing)}" if missing else None


def is_entered() -> bool:
    return ENTERED in os.environ


def enter() -> None:
    """Start this program again in a network and mounts of its own; there, set them up."""
    if not is_entered():
        environment = {**os.environ, ENTERED: "1"}
        command = ["unshare", "--net", "--mount", "--", sys.executable, *sys.orig_argv[1:]]
        os.execvpe("unshare", command, environment)
    _set_up()


@contextmanager
def entered() -> Iterator[None]:
    """Give this thread, and what it starts, a network of its own while the block runs."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as outside:
        if libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        os.environ[ENTERED] = "1"
        try:
            _set_up()
            yield
        finally:
            del os.environ[ENTERED]
            if libc.setns(outside.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")


def _set_up() -> None:
    _run("ip", "link", "set", "lo", "up")
    subprocess.run(["nft", "-f", "-"], input=_FIREWALL, text=True, check=True)


def in_group(name: str | int) -> list[str]:
    """Return what to put before the command of a process so that the firewall knows it by this name."""
    return ["setpriv", "--regid", str(_group(name)), "--clear-groups", "--"] if is_entered() else []


@contextmanager
def starting_group(name: str | int) -> Iterator[None]:
    """Let the firewall know by this name what is started in the block. This process must open no connection there."""
    group = _group(name)
    os.setresgid(group, group, 0)
    try:
        yield
    finally:
        os.setresgid(0, 0, 0)


def _group(name: str | int) -> int:
    return _groups.setdefault(name, GROUPS[len(_groups)])


@contextmanager
def cut_off(names: Collection[str | int], ports: Collection[int]) -> Iterator[None]:
    """Let nothing pass from the processes of these names to these ports, or back."""
    pairs = ", ".join(f"{_groups[name]} . {port}" for name in names for port in ports)
    elements = ["element", "inet", "faults", "blocked", f"{{ {pairs} }}"]
    _run("nft", "add", *elements)
    try:
        yield
    finally:
        _run("nft", "delete", *elements)


@contextmanager
def forgotten(names: Collection[str | int], ports: Collection[int]) -> Iterator[None]:
    """Let nothing more pass on the connections that these processes have to these ports now; new ones work.

    A firewall that lost its state, or a load balancer with an idle timeout, does so.
    """
    for name in names:
        _mark(_groups[name], as_group=_groups[name] + LATER)
    try:
        with cut_off(names, ports):
            yield
    finally:
        for name in names:
            _mark(_groups[name], as_group=_groups[name])


def _mark(group: int, *, as_group: int) -> None:
    """Let connections that a group opens from now on be known as those of another group."""
    groups = ["element", "inet", "faults", "groups"]
    _run("nft", "delete", *groups, f"{{ {group} }}")
    _run("nft", "add", *groups, f"{{ {group} : {as_group} }}")


def mount_disk(directory: Path, megabytes: int) -> None:
    """Give a directory a disk of its own, which is small. Without isolation, only make the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    if is_entered():
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory))
        _mounted.append(directory)


def remove_disk(directory: Path) -> None:
    """Remove a directory with its disk."""
    if directory in _mounted:
        _mounted.remove(directory)
        _run("umount", "--lazy", str(directory))
    shutil.rmtree(directory)


def remove_disks() -> None:
    for directory in list(_mounted):
        remove_disk(directory)


@contextmanager
def full_disk(directory: Path) -> Iterator[None]:
    """Let nothing more fit on the disk of a directory."""
    ballast = directory / BALLAST
    try:
        with ballast.open("wb", buffering=0) as file, suppress(OSError):  # ends when the disk is full
            while file.write(bytes(BLOCK)):
                pass
        yield
    finally:
        ballast.unlink(missing_ok=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
