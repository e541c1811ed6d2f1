"""pytest-celery's nodes as processes of this machine: what it calls a container needs no Docker here."""

from __future__ import annotations

import signal
from typing import Any

from pytest_celery import CeleryTestBroker, CeleryTestWorker

from dev.servers import Valkey
from tests.e2e.celery_processes import READY, CeleryProcess
from tests.eventually import eventually


class LocalServer:
    """A Valkey in the form of a container."""

    def __init__(self, valkey: Valkey) -> None:
        self._valkey = valkey
        self.name = self.id = f"valkey-{valkey.port}"
        self.status = "running"

    @property
    def celeryconfig(self) -> dict[str, Any]:
        return {"url": self._valkey.url, "host_url": self._valkey.url}

    def ready(self) -> bool:
        return self._valkey.pid > 0

    def logs(self) -> str:
        return (self._valkey.directory / "valkey.log").read_text()

    def kill(self, signal: str | int = "SIGKILL") -> None:
        self._valkey.kill()
        self.status = "exited"

    def restart(self, timeout: int = 10) -> None:
        self._valkey.stop()
        self._valkey.start()
        self.status = "running"

    def reload(self) -> None:
        """A process needs no reading again."""

    def teardown(self) -> None:
        """The session's fixture stops the server."""


class LocalProcess:
    """A Celery process in the form of a container."""

    def __init__(self, process: CeleryProcess, *, role: str) -> None:
        self._process = process
        self._role = role
        self.name = self.id = f"{role}-{process.pid}"

    @property
    def status(self) -> str:
        return "running" if self._process.is_alive() else "exited"

    @property
    def celeryconfig(self) -> dict[str, Any]:
        return {}

    def ready(self) -> bool:
        eventually(lambda: READY[self._role] in self.logs())
        return True

    def logs(self) -> str:
        return self._process.log

    def version(self) -> str:
        return "5.7"

    def log_level(self) -> str:
        return "INFO"

    def worker_name(self) -> str:
        return "celery"

    def worker_queue(self) -> str:
        return "scans"

    def kill(self, signal: str | int = "SIGKILL") -> None:
        if signal == "SIGKILL":
            self._process.kill()
        else:
            self._process.signal(getattr(_signals, str(signal)))

    def restart(self, timeout: int = 10) -> None:
        self._process.stop()
        self._process.start()

    def reload(self) -> None:
        """A process needs no reading again."""

    def teardown(self) -> None:
        self._process.kill()


_signals = signal.Signals


class LocalBroker(CeleryTestBroker):
    """The session's Valkey as a broker node."""


class LocalCeleryNode(CeleryTestWorker):
    """A worker or a beat as a worker node."""
