"""A private certificate authority with a certificate for 127.0.0.1 and one for clients, by the documented commands."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.documented import block, options

URLS = options(block(3, heading="TLS"))
"""The documented environment with the files of a client."""


@dataclass(frozen=True)
class Certificates:
    directory: Path

    @classmethod
    def made_in(cls, directory: Path) -> Self:
        directory.mkdir()
        commands = block(0, heading="TLS").replace("DNS:redis.internal", "IP:127.0.0.1")
        subprocess.run(["sh", "-ec", commands], cwd=directory, check=True, capture_output=True)
        return cls(directory)

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def placed(self, text: str) -> str:
        """Return a documented configuration or URL with the paths of these files."""
        assert "/etc/" in text
        return re.sub(r"/etc/(?:qm|redis|mongodb|rabbitmq)(?=/)", str(self.directory), text)

    @property
    def for_redis(self) -> str:
        """The documented options of a URL of Redis, with the client's certificate."""
        return urlsplit(self.placed(URLS["REDIS_URL"])).query
