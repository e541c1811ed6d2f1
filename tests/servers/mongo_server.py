"""A MongoDB with users and, with certificates, TLS alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pymongo import MongoClient

from dev.ports import LOOPBACK
from dev.servers import DATABASE, REPLICA_SET
from tests.deployment.programs import replaced
from tests.documented import block, options
from tests.guarded_mongo import GuardedMongo
from tests.servers.certificates import URLS, Certificates

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
        """Return the documented URL, with TLS if the server has certificates."""
        values = {"/product?": f"/{DATABASE}?", "=rs0": f"={REPLICA_SET}"}
        address = f"{login(user)}@{LOOPBACK}:{self.port}"
        if self._certificates is None:
            url = options(block(5, heading=HEADING))["MONGO_DB_URL"]
            values["qm:password@a,b,c"] = address
        else:
            url = self._certificates.placed(URLS["MONGO_DB_URL"])
            values["user:password@mongo.internal"] = address
        return replaced(url, values) + ("&authSource=admin" if user == "admin" else "")

    def srv_url_of(self, user: str, host: str) -> str:
        """Return the documented URL without an address."""
        assert self._certificates is not None
        url = self._certificates.placed(options(block(0, heading="mongodb+srv"))["MONGO_DB_URL"])
        return replaced(url, {"qm:password": login(user), "db.example.org/product": f"{host}/{DATABASE}"})

    def _command(self, program: str) -> list[str]:
        command = super()._command(program)
        if self._has_users and self._certificates is not None:
            config = self.directory / "mongod.conf"
            config.write_text(self._certificates.placed(block(2, heading="TLS")))
            command += ["--config", str(config)]
        return command


def login(user: str) -> str:
    return f"{user}:{quote(PASSWORDS[user], safe='')}"


def documented(number: int) -> dict[str, Any]:
    """Return a documented command, for the database and with the passwords of the tests."""
    (text,) = re.findall(r"db\.runCommand\((.*)\)", block(number, heading=HEADING), flags=re.DOTALL)
    command: dict[str, Any] = json.loads(text.replace('"product"', f'"{DATABASE}"'))
    return command | ({"pwd": PASSWORDS[command["createUser"]]} if "createUser" in command else {})
