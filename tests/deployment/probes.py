"""Health checks of the Compose file and probes of the Kubernetes manifests, as a container runtime runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol
from urllib.error import URLError
from urllib.request import urlopen

import yaml

from tests.deployment.installation import ROOT

COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
KUBERNETES = ROOT / "deploy" / "kubernetes" / "base"
KINDS = ("startupProbe", "livenessProbe", "readinessProbe")
NONE: Mapping[str, str] = MappingProxyType({})
DEFAULT_TIMEOUTS = {"compose": "30s", "kubernetes": 1}


class Probe(Protocol):
    def passes(self) -> bool: ...


@dataclass(frozen=True)
class CommandProbe:
    """Passes if the command succeeds in time."""

    command: Sequence[str]
    timeout: float
    env: Mapping[str, str]

    def passes(self) -> bool:
        env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **self.env}
        output = subprocess.DEVNULL
        with subprocess.Popen(self.command, env=env, stdout=output, stderr=output, start_new_session=True) as process:
            try:
                return process.wait(self.timeout) == 0
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return False


@dataclass(frozen=True)
class HttpProbe:
    """Passes if the response has a status of success in time."""

    url: str
    timeout: float

    def passes(self) -> bool:
        try:
            with urlopen(self.url, timeout=self.timeout):
                return True
        except (URLError, HTTPException, OSError):
            return False


def of_compose(service: str, replaced: Mapping[str, str] = NONE, env: Mapping[str, str] = NONE) -> CommandProbe:
    """Return the health check of a service, with the values of this machine in its command."""
    check = COMPOSE[service]["healthcheck"]
    kind, *words = [with_values(word.replace("$$", "$"), replaced) for word in check["test"]]
    command = words if kind == "CMD" else ["sh", "-c", *words]
    own = {name: value for name, value in COMPOSE[service].get("environment", {}).items() if name == "WORKER"}
    env = {**env, **own}
    return CommandProbe(command, float(check.get("timeout", DEFAULT_TIMEOUTS["compose"]).removesuffix("s")), env)


def of_kubernetes(deployment: str, port: int = 0, env: Mapping[str, str] = NONE) -> dict[str, Probe]:
    """Return the probes of a container by their kind."""
    container = container_of(deployment)
    return {kind: probe_of(container[kind], port, env) for kind in KINDS if kind in container}


def container_of(deployment: str) -> dict[str, Any]:
    manifests = yaml.safe_load_all((KUBERNETES / f"{deployment}.yaml").read_text())
    found: dict[str, Any] = next(manifests)["spec"]["template"]["spec"]["containers"][0]
    return found


def probe_of(manifest: dict[str, Any], port: int, env: Mapping[str, str]) -> Probe:
    timeout = float(manifest.get("timeoutSeconds", DEFAULT_TIMEOUTS["kubernetes"]))
    if "exec" in manifest:
        return CommandProbe(manifest["exec"]["command"], timeout, env)
    return HttpProbe(f"http://127.0.0.1:{port}{manifest['httpGet']['path']}", timeout)


def with_values(text: str, values: Mapping[str, str]) -> str:
    for old, new in values.items():
        text = text.replace(old, new)
    return text


def passing(probes: Mapping[str, Probe]) -> set[str]:
    """Run all at once. Returns the names of those that pass."""
    with ThreadPoolExecutor() as pool:
        results = dict(zip(probes, pool.map(lambda probe: probe.passes(), probes.values()), strict=True))
    return {name for name, has_passed in results.items() if has_passed}
