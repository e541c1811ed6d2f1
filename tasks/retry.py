"""Sends the tasks of items that an operator chose, at once.

Guarantee: a retry takes the leases of the items as a scan does, so neither a scan nor another retry sends them, too.
Items that were not sent are released and due at once. Items that may have been sent keep their leases for up to 20 s.
"""

from __future__ import annotations

from collections.abc import Sequence

from queue_manager.batching.publish import UNCERTAIN, is_json, publish
from queue_manager.core.errors import Unavailable, reason
from queue_manager.core.log import get_logger
from queue_manager.items import DueItem, Listed
from queue_manager.server_calls import broker, mongodb
from queue_manager.system import System
from tasks.app import app
from tasks.item import ItemTask

log = get_logger("QM/items")


def retry(system: System, listed: Listed, ids: Sequence[str]) -> list[DueItem]:
    """Send the tasks of those of at most 1,000 ids that are due, stuck or failed; return them. Raises `Unavailable`."""
    task: ItemTask = app.tasks[system.item_task]
    with mongodb():
        taken = listed.take(ids)
    sendable = [one for one in taken if is_json(one.args)]
    if 0 < len(sendable) < len(taken):  # the others must not hold them up
        others = [one for one in taken if not is_json(one.args)]
        log.error("Items have arguments that are not JSON", system=system.name, items=len(others), args=others[0].args)
        _release(task, others)
        taken = sendable
    if taken:
        _send(task, taken)
        _mark_dispatched(task, taken)
    return taken


def _send(task: ItemTask, taken: Sequence[DueItem]) -> None:
    """Send items; release them if none was sent. Raises `Unavailable`.

    If some may have been sent, all keep their leases for up to 20 s, so that the next scan does not send them again.
    """
    is_uncertain = False
    try:
        with broker() as connection, app.amqp.Producer(connection) as producer:
            try:
                publish(task, taken, producer)
            except UNCERTAIN:
                is_uncertain = True
                raise
    except Exception:
        if not is_uncertain:
            _release(task, taken)
        raise


def _release(task: ItemTask, taken: Sequence[DueItem]) -> None:
    try:
        with mongodb():
            task.work().release(taken)
    except Unavailable as error:
        log.warning("Items that were not sent are due when their leases end", items=len(taken), error=reason(error))


def _mark_dispatched(task: ItemTask, taken: Sequence[DueItem]) -> None:
    try:
        task.work().mark_dispatched_manually(taken)
    except Unavailable as error:
        log.warning("Items that were sent are held for 20 s at most", items=len(taken), error=reason(error))
