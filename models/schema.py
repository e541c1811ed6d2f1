"""Every index of every collection: what `queue-manager migrate` creates."""

from __future__ import annotations

from collections.abc import Sequence

from pymongo import IndexModel

from models import scan_run, support_room


def indexes() -> dict[str, Sequence[IndexModel]]:
    """Return the wanted indexes by collection."""
    return {support_room.NAME: support_room.indexes(), scan_run.NAME: scan_run.indexes()}
