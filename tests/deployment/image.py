"""The image of `deploy/Containerfile`, built by buildah without an engine, and processes in it.

Its base is made of Debian's packages by mmdebstrap, in place of an image from a registry.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deployment.installation import ROOT, run
from tests.deployment.programs import program

BASE, IMAGE = "localhost/base", "localhost/queue-manager"
CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt"  # of this machine, which may reach the package index through a proxy
)
BUILD_TIMEOUT = 900  # seconds; everything is downloaded
PACKAGES = "ca-certificates,python3,python3-venv"
# A read-only root with its own /proc and /tmp, as with `docker run --read-only --tmpfs /tmp`. Each program replaces
# the one before it, so that signals reach the process.
READ_ONLY = """
mount --rbind "$0" "$0"
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
mount -t tmpfs tmpfs "$0/tmp"
mount -o remount,bind,ro "$0"
exec chroot --userspec="$1" "$0" /usr/bin/env --ignore-environment --chdir=/app "${@:2}"
"""


@dataclass(frozen=True)
class Image:
    """The root directory of a container, and the configuration of its image."""

    root: Path
    config: Mapping[str, Any]

    def command(self, *command: str, **env: str) -> str:
        """Return a shell command that runs `command` in the image as its user, with a read-only root."""
        settings = [*self.config["Env"], *(f"{name}={value}" for name, value in env.items())]
        steps = ["unshare", "--mount", "bash", "-ec", READ_ONLY, str(self.root), self.config["User"], *settings]
        return f"exec {shlex.join([*steps, *command])}"


def build_image(directory: Path) -> tuple[list[str], Image]:
    """Build the image in `directory`. Returns the buildah command to remove it with, and the image."""
    base = directory / "base.tar"
    trust = f'--customize-hook=cp {CERTIFICATES} "$1{CERTIFICATES}"'
    make_base = program("mmdebstrap", package="mmdebstrap")
    minimal = ("--quiet", "--variant=minbase", f"--include={PACKAGES}", trust)
    run(make_base, *minimal, "bookworm", base, timeout=BUILD_TIMEOUT)
    storage = ("--root", f"{directory}/root", "--runroot", f"{directory}/run", "--storage-driver", "vfs")
    buildah = [program("buildah", package="buildah"), *storage]
    run(*buildah, "from", "--name", "base", "scratch")
    run(*buildah, "add", "--quiet", "base", base, "/")
    run(*buildah, "commit", "--quiet", "base", BASE)
    options = ("--isolation", "chroot", "--pull-never", "--build-arg", f"BASE={BASE}", "--tag", IMAGE)
    run(*buildah, "build", *options, "--file", ROOT / "deploy" / "Containerfile", ROOT, timeout=BUILD_TIMEOUT)
    run(*buildah, "from", "--pull-never", "--name", "made", IMAGE)
    return buildah, mounted(buildah, "made")


def add_package(buildah: list[str], directory: Path, containerfile: str) -> Image:
    """Build an image on top of that of `build_image`, from the files of `directory`."""
    (directory / "Containerfile").write_text(containerfile)
    options = ("--isolation", "chroot", "--pull-never", "--tag", "localhost/with-package")
    run(*buildah, "build", *options, "--file", directory / "Containerfile", directory, timeout=BUILD_TIMEOUT)
    run(*buildah, "from", "--pull-never", "--name", "with-package", "localhost/with-package")
    return mounted(buildah, "with-package")


def mounted(buildah: list[str], container: str) -> Image:
    root = Path(printed(*buildah, "mount", container).strip())
    return Image(root, json.loads(printed(*buildah, "inspect", container))["OCIv1"]["config"])


def printed(*command: str) -> str:
    """Return the standard output of a command alone: buildah also logs warnings."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
