"""All processes work with a RabbitMQ that speaks TLS alone, with a certificate of a private authority."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from dev.ports import LOOPBACK
from tests.e2e.brokers import PASSWORD, QUOTED_PASSWORD, RabbitMQ
from tests.e2e.celery_processes import CeleryProcess
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.servers.certificates import Certificates
from tests.servers.everything import do_everything, processes, shown

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

FILES = {"certfile": "server.pem", "keyfile": "server.key", "cacertfile": "ca.pem"}


class EncryptedRabbitMQ(RabbitMQ):
    """A RabbitMQ that speaks TLS alone."""

    def __init__(self, directory: Path, certificates: Certificates) -> None:
        super().__init__(directory)
        self._certificates = certificates

    @property
    def url(self) -> str:
        return super().url.replace("amqp:", "amqps:")

    def _config(self) -> dict[str, str]:
        listeners = {"listeners.tcp": "none", "listeners.ssl.default": f"{LOOPBACK}:{self.port}"}
        files = {f"ssl_options.{name}": self._certificates.path(file) for name, file in FILES.items()}
        login = {name: value for name, value in super()._config().items() if name.startswith("default_")}
        return {**listeners, **files, **login}

    def _tls(self) -> dict[str, Any]:
        authority = self._certificates.path("ca.pem")
        return {"ca_certs": authority, "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": LOOPBACK}


def test_everything_works_over_tls_and_no_password_is_shown(clean: Servers, tmp_path: Path) -> None:
    certificates = Certificates.made_in(tmp_path / "certificates")
    with EncryptedRabbitMQ(tmp_path / "rabbitmq", certificates) as server:
        env = {"BROKER_URL": server.url, "SSL_CERT_FILE": certificates.path("ca.pem")}
        with processes(tmp_path, **env) as running:
            do_everything(running)
            text = shown(running)
    assert "Traceback" not in running.logs
    for secret in (PASSWORD, QUOTED_PASSWORD):
        assert secret not in text


def test_a_certificate_of_an_unknown_authority_is_not_accepted(clean: Servers, tmp_path: Path) -> None:
    certificates = Certificates.made_in(tmp_path / "certificates")
    with EncryptedRabbitMQ(tmp_path / "rabbitmq", certificates) as server:
        worker = CeleryProcess(tmp_path / "worker", "worker", env={"BROKER_URL": server.url}).start(ready=False)
        try:
            eventually(lambda: "certificate verify failed" in worker.log, within=60)  # it waits for the right one
        finally:
            worker.kill()
    assert PASSWORD not in worker.log
