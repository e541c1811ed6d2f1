"""A private certificate authority with a certificate for 127.0.0.1 and one for clients, by the documented commands."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

from tests.servers.documented import block


@dataclass(frozen=True)
class Certificates:
    directory: Path

    @classmethod
    def made_in(cls, directory: Path) -> Self:
        directory.mkdir()
        commands = block(0, heading="TLS").replace("DNS:redis.internal", "IP:127.0.0.1")
        subprocess.run(["sh", "-ec", commands], cwd=directory, check=True, capture_output=True, timeout=60)
        return cls(directory)

    def path(self, name: str) -> str:
        return str(self.directory / name)

    @property
    def for_redis(self) -> str:
        """The options of a URL of Redis, with the client's certificate."""
        names = {"ssl_ca_certs": "ca.pem", "ssl_certfile": "client.pem", "ssl_keyfile": "client.key"}
        return urlencode({option: self.path(name) for option, name in names.items()}, safe="/")
