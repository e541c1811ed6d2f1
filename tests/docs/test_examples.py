"""Examples that never end by themselves, executed with functions that end them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dev.site.markdown import blocks
from queue_manager import message_queue
from tests.real_servers import Servers

ROOT = Path(__file__).parents[2]


class Stopped(Exception):
    """The example was stopped."""


def test_the_consumer_of_the_message_queue_acknowledges_what_it_receives(clean: Servers) -> None:
    (code,) = [
        block.code
        for block in blocks((ROOT / "docs/how-to/message-queue.md").read_text())
        if block.language == "python"
    ]
    sent: list[Any] = []

    def send(payload: Any) -> None:
        if sent:
            raise Stopped
        sent.append(payload)
        message_queue().enqueue("send_mail", {"to": "second"}, id="second", max_attempts=1)

    with pytest.raises(Stopped):
        exec(code, {"send": send})

    assert sent == [{"to": "ada@example.org"}]
    with message_queue().receive() as message:
        assert message is None  # the first is acknowledged, the second was dead-lettered when the block raised
