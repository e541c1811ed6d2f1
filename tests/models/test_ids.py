"""Ids of every type as texts, and back."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import Binary, ObjectId
from bson.binary import UUID_SUBTYPE

from models.document_id import id_key, id_text, read_id, shown_id
from queue_manager.core.errors import PermanentError
from tests.odd_ids import ODD_IDS


@pytest.mark.parametrize("id", [ObjectId(), *ODD_IDS], ids=lambda id: type(id).__name__)
def test_id_is_read_as_it_was_written(id: Any) -> None:
    text = id_text(id)
    assert json.loads(json.dumps(text)) == text
    read = read_id(text, field="id")
    assert bson.encode({"_id": read}) == bson.encode({"_id": id})
    assert {id_key(id): "found"}[read] == "found"


def test_only_an_object_id_is_written_as_its_digits() -> None:
    id = ObjectId()
    assert id_text(id) == str(id)
    assert read_id(id_text(str(id)), field="id") == str(id)
    assert len({id_text(one) for one in ODD_IDS}) == len(ODD_IDS)


def test_a_uuid_is_shown_with_hyphens_if_it_is_one() -> None:
    id = UUID(int=2**127 - 7)
    assert shown_id(Binary.from_uuid(id)) == str(id)
    malformed = Binary(b"\x00", UUID_SUBTYPE)
    assert shown_id(malformed) == id_text(malformed)


BAD: list[Any] = [
    *(
        "nonsense",
        "",
        "[1]",
        '{"$gt": ""}',
        '{"$regex": "a"}',
        '{"$oid": "x"}',
        '{"$date": "x"}',
        '"',
        '"\\ud800"',
        "[",
    ),
    '{"a":' * 101 + "1" + "}" * 101,
    *('{"$numberInt": "' + "9" * 5000 + '"}', str(2**70), "[" * 100_000, '{"$regularExpression": {}}'),
    *(None, 5, {}, {"$gt": ""}, []),
]


@pytest.mark.parametrize("value", BAD, ids=lambda value: repr(value)[:20])
def test_invalid_id_is_refused_with_the_name_of_its_field(value: Any) -> None:
    with pytest.raises(PermanentError, match=r"^room_id: .{0,120} is not an id: must be"):
        read_id(value, field="room_id")
