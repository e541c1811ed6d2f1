"""An import adds the valid messages in order, and names the invalid ones."""

from __future__ import annotations

import json

from services.message_queue.fields import MAX_ENQUEUED_MESSAGES
from services.message_queue.transfer import ImportResult, import_messages, parse_lines
from tests.services.message_queue.message_lab import Lab


def imported(lab: Lab, *lines: str) -> ImportResult:
    *_, result = import_messages(lab.queue, parse_lines([line.encode() for line in lines], lab.queue.options))
    return result


def test_import_refuses_invalid_messages_and_adds_all_others(lab: Lab) -> None:
    valid = [json.dumps({"id": f"{number}", "type": "mail"}) for number in range(MAX_ENQUEUED_MESSAGES + 2)]
    invalid = ['{"type":"a\\u009f"}', '{"type":"mail","priority":4}', f'{{"type":"mail","payload":"{"x" * 2**20}"}}']

    result = imported(lab, valid[0], invalid[0], *valid[1:-1], invalid[1], "", valid[-1], invalid[2])

    last = len(valid) + len(invalid) + 1
    assert [reason.split(": must")[0] for reason in result.refused] == [
        "line 2: type",
        f"line {last - 3}: priority",
        f"line {last}: payload",
    ]
    assert (result.added, result.known) == (len(valid), 0)
    assert lab.ids("main") == [f"{number}" for number in reversed(range(len(valid)))]


def test_import_refuses_invalid_elements_of_a_list_and_adds_the_others(lab: Lab) -> None:
    result = imported(lab, '[{"type":"mail"},', '7, {"type":"sms"}]')

    assert [reason.split(": must")[0] for reason in result.refused] == ["[1]: body"]
    assert [message.type for message in lab.queue.receive_many(10)] == ["mail", "sms"]
