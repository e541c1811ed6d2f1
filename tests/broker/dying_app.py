"""`guard_app` in a worker that kills itself at the step that GUARD_APP_DIES names."""

from __future__ import annotations

import os
import signal
from typing import Any

from queue_manager.broker.channel import Channel
from queue_manager.broker.unacked import UnackedMessages
from tests.broker.guard_app import app

__all__ = ["app"]


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_if_done(qos: Any) -> None:
    if qos._pending_acks:
        die()


read = Channel._brpop_read


def read_and_die(channel: Any) -> None:
    read(channel)
    die()


match os.environ["GUARD_APP_DIES"]:
    case "taken, none handed over":
        Channel._dispatch = die  # type: ignore[method-assign]
    case "handed over, none done":
        Channel._brpop_read = read_and_die  # type: ignore[assignment,method-assign]
    case "done, none acknowledged":
        UnackedMessages.flush_acks = die_if_done  # type: ignore[assignment,method-assign]
