"""Every index of every collection: what `queue-manager migrate` creates."""

from __future__ import annotations

from models import database, pulse, scan_run, site, subscription, support_room
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import settings


def migrate() -> list[str]:
    """Create every index that is missing; return their names. Safe to repeat.

    Raises:
        ConfigurationError: documents that are already there contradict a unique index; lists them. Nothing was done.
    """
    if obstacles := pulse.obstacles():
        raise ConfigurationError(
            "these must be put in order first: leave one open request of each account, and set the others to "
            "status `dismissed`\n" + "\n".join(obstacles)
        )
    wanted = {
        support_room.NAME: support_room.indexes(),
        settings().subscriptions_collection: subscription.indexes(),
        settings().pulses_collection: pulse.indexes(),
        **{name: sites.indexes() for name, sites in site.ALL.items()},
        site.RESETS: site.reset_indexes(),
        scan_run.NAME: scan_run.indexes(),
    }
    return database.create_indexes(wanted)
