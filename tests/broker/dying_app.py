"""`guard_app` in a worker that kills itself at a step of a message, told by GUARD_APP_DIES."""

from __future__ import annotations

import os
import signal
from typing import Any

from queue_manager.broker import transport, unacked
from tests.broker.guard_app import app

__all__ = ["app"]


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_if_done(qos: Any) -> None:
    if qos._done:
        die()


read = transport.Channel._brpop_read


def read_and_die(channel: Any) -> None:
    read(channel)
    die()


match os.environ["GUARD_APP_DIES"]:
    case "taken, none handed over":
        transport.Channel._hand_over = die  # type: ignore[method-assign]
    case "handed over, none done":
        transport.Channel._brpop_read = read_and_die  # type: ignore[assignment,method-assign]
    case "done, none acknowledged":
        unacked.QoS.send_acks = die_if_done  # type: ignore[assignment,method-assign]
