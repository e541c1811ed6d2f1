"""A MongoDB with users and, with certificates, TLS alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from pymongo import MongoClient

from dev.ports import LOOPBACK
from dev.servers import DATABASE, REPLICA_SET
from tests.guarded_mongo import GuardedMongo
from tests.servers.certificates import Certificates
from tests.servers.documented import block

HEADING = "MongoDB users with least privilege"
PASSWORDS = {"admin": "adm1n/p@ss", "qm": "us3r/p@ss", "qm-migrate": "m1grate/p@ss"}
OTHERS = ("second_try", "second_try_log", "job_notes")
"""Collections of the systems and jobs of the tests."""


class MongoWithRoles(GuardedMongo):
    """A MongoDB with an administrator and the documented roles and users."""

    def __init__(self, directory: Path, certificates: Certificates | None = None) -> None:
        super().__init__(directory)
        self._certificates = certificates

    def create_users(self, client: MongoClient[dict[str, Any]]) -> None:
        client.admin.command("createUser", "admin", pwd=PASSWORDS["admin"], roles=["root"])
        for number in range(4):
            client[DATABASE].command(documented(number))
        grant = documented(4)
        (privilege,) = grant["privileges"]
        for name in OTHERS:
            privilege["resource"]["collection"] = name
            privilege["actions"] = ["find", "insert", "update", "listIndexes"]
            client[DATABASE].command(grant)

    def url_of(self, user: str) -> str:
        auth_source = {"authSource": "admin"} if user == "admin" else {}
        query = urlencode({"replicaSet": REPLICA_SET, **auth_source, **self.tls}, safe="/")
        return f"mongodb://{login(user)}@{LOOPBACK}:{self.port}/{DATABASE}?{query}"

    @property
    def tls(self) -> dict[str, str]:
        """The options of a URL."""
        if self._certificates is None:
            return {}
        files = {"tlsCAFile": "ca.pem", "tlsCertificateKeyFile": "client-and-key.pem"}
        return {"tls": "true", **{option: self._certificates.path(name) for option, name in files.items()}}

    def _command(self, program: str) -> list[str]:
        command = super()._command(program)
        if self._has_users and self._certificates is not None:
            files = {"--tlsCAFile": "ca.pem", "--tlsCertificateKeyFile": "server-and-key.pem"}
            command += ["--tlsMode", "requireTLS"]
            command += [word for option, name in files.items() for word in (option, self._certificates.path(name))]
        return command


def login(user: str) -> str:
    return f"{user}:{quote(PASSWORDS[user], safe='')}"


def documented(number: int) -> dict[str, Any]:
    """Return a documented command, for the database and with the passwords of the tests."""
    (text,) = re.findall(r"db\.runCommand\((.*)\)", block(number, heading=HEADING), flags=re.DOTALL)
    command: dict[str, Any] = json.loads(text.replace('"product"', f'"{DATABASE}"'))
    return command | ({"pwd": PASSWORDS[command["createUser"]]} if "createUser" in command else {})
