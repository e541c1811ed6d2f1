"""The progress of index builds, which may take minutes; MongoDB serves reads and writes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from pymongo.errors import PyMongoError

from models.database import client, database
from queue_manager.core.background import in_thread
from queue_manager.core.log import get_logger

REPORT_INTERVAL = 2.0  # seconds between two reports

log = get_logger("QM/migrate")


@dataclass(frozen=True, kw_only=True)
class IndexBuild:
    """An index that the server builds now: `done` of `total` documents in the current phase."""

    index: str
    """As `collection.index`."""
    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.index}: {100 * self.done // self.total} % of {self.total:,} documents or keys"


@contextmanager
def reported(report: Callable[[IndexBuild], None], *, interval: float = REPORT_INTERVAL) -> Iterator[None]:
    """Report the index builds of this database while the block runs, from a thread.

    Nothing is reported if the user may not see the operations of the server.
    """

    def watch(is_over: Event) -> None:
        while not is_over.wait(interval):
            try:
                for build in _running():
                    report(build)
            except PyMongoError as error:
                log.debug("The progress of index builds is unknown", error=str(error))
                return

    with in_thread(watch, name="index-builds"):
        yield


def _running() -> Iterator[IndexBuild]:
    is_build = {"command.createIndexes": {"$exists": True}, "progress.total": {"$gt": 0}}
    operations = client().admin.aggregate([{"$currentOp": {}}, {"$match": is_build}])
    for one in operations:
        names = ", ".join(index["name"] for index in one["command"]["indexes"])
        if one["ns"].partition(".")[0] == database().name:
            yield IndexBuild(
                index=f"{one['command']['createIndexes']}.{names}",
                done=one["progress"]["done"],
                total=one["progress"]["total"],
            )
