"""All processes work with a RabbitMQ that speaks TLS alone, with a certificate of a private authority."""

from __future__ import annotations

import os
import ssl
import subprocess
from pathlib import Path
from typing import Any, Self

import amqp
import pytest

from dev.ports import LOOPBACK
from tests.deployment.programs import replaced
from tests.documented import BROKERS, block, options
from tests.e2e.brokers import PASSWORD, QUOTED_PASSWORD, RABBITMQ, RabbitMQ
from tests.e2e.celery_processes import CeleryProcess
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.servers.certificates import Certificates
from tests.servers.everything import do_everything, processes, shown

pytestmark = pytest.mark.processes

USER = "queue-manager"


def documented(number: int) -> str:
    return block(number, heading="RabbitMQ", page=BROKERS)


class EncryptedRabbitMQ(RabbitMQ):
    """A RabbitMQ that is configured and given a virtual host and a user as documented."""

    def __init__(self, directory: Path, certificates: Certificates) -> None:
        super().__init__(directory)
        self._certificates = certificates

    def __enter__(self) -> Self:
        super().__enter__()
        commands = replaced(documented(0), {f"{USER} password": f"{USER} {PASSWORD}"})
        path = f"{RABBITMQ.find().parent}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, **self.of_its_node}
        done = subprocess.run(
            ["sh", "-ec", commands], env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return self

    @property
    def env(self) -> dict[str, str]:
        """The documented environment of all processes."""
        address = {":password@rabbitmq.internal:5671": f":{QUOTED_PASSWORD}@{LOOPBACK}:{self.port}"}
        return options(replaced(self._certificates.placed(documented(2)), address))

    def _config(self) -> dict[str, str]:
        address = {"default = 5671": f"default = {LOOPBACK}:{self.port}"}
        administrator = {name: value for name, value in super()._config().items() if name.startswith("default_")}
        return {**administrator, **options(replaced(self._certificates.placed(documented(1)), address))}

    def _tls(self) -> dict[str, Any]:
        authority = self._certificates.path("ca.pem")
        return {"ca_certs": authority, "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": LOOPBACK}


def test_everything_works_over_tls_and_no_password_is_shown(clean: Servers, tmp_path: Path) -> None:
    certificates = Certificates.made_in(tmp_path / "certificates")
    with EncryptedRabbitMQ(tmp_path / "rabbitmq", certificates) as server:
        with processes(tmp_path, **server.env) as running:
            do_everything(running)
            text = shown(running)
        with pytest.raises(amqp.NotAllowed):
            server.connect(USER, "/")
    assert "Traceback" not in running.logs
    for secret in (PASSWORD, QUOTED_PASSWORD):
        assert secret not in text


def test_a_certificate_of_an_unknown_authority_is_not_accepted(clean: Servers, tmp_path: Path) -> None:
    certificates = Certificates.made_in(tmp_path / "certificates")
    with EncryptedRabbitMQ(tmp_path / "rabbitmq", certificates) as server:
        env = {"BROKER_URL": server.env["BROKER_URL"]}
        worker = CeleryProcess(tmp_path / "worker", "worker", env=env).start(ready=False)
        try:
            eventually(lambda: "certificate verify failed" in worker.log)  # it waits for the right one
        finally:
            worker.kill()
    assert PASSWORD not in worker.log
