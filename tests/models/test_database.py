"""Read and write concerns do not depend on the defaults of the deployment."""

from __future__ import annotations

from pymongo import ReadPreference

from models import database
from tests.real_servers import Servers


def test_writes_are_acknowledged_by_a_majority_and_reads_go_to_the_primary(servers: Servers) -> None:
    rooms = database.collection("rooms")
    assert rooms.write_concern.document["w"] == "majority"
    assert rooms.read_preference == ReadPreference.PRIMARY
