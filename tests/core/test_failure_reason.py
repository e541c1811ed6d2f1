"""Failure reasons without their variable parts, by which failures are grouped."""

from __future__ import annotations

import pytest

from queue_manager.core.failure_reason import MAX_COMPARED_LENGTH, longest_literal, normalize

FRAME = '  File "/srv/mail.py", line 1, in send\n    deliver(letter)\n'


@pytest.mark.parametrize(
    ("reason", "normalized"),
    [
        ("Boom", "Boom"),
        (f"Traceback (most recent call last):\n{FRAME * 20}KeyError: 'to'\n", "KeyError: <value>"),
        ("HTTP 503 after 3 tries", "HTTP <number> after <number> tries"),
        ("missed by -1,234.5 and 1e-7", "missed by <number> and <number>"),
        ("E11000 duplicate key", "E11000 duplicate key"),
        ("a sha256 sum", "a sha256 sum"),
        ("no order 550e8400-e29b-41d4-a716-446655440000", "no order <id>"),
        ("no room 65b2f0a1c3d4e5f601234567", "no room <id>"),
        ("no room ObjectId('65b2f0a1c3d4e5f601234567')", "no room ObjectId(<value>)"),
        ("at 0x7f3a, commit DEADBEEF01", "at <id>, commit <id>"),
        ("invoice inv_8f3a2b is gone", "invoice <id> is gone"),
        ("key 01ARZ3NDEKTSV4RRFFQ69G5FAV is gone", "key <id> is gone"),
        ("a decade of facades", "a decade of facades"),
        ("KeyError: 'name'", "KeyError: <value>"),
        ('no "such thing" here', "no <value> here"),
        ("can't open `a b`; don't", "can't open <value>; don't"),
        ("an 'unfinished quotation", "an 'unfinished quotation"),
        ("cannot read /var/log/app-1.log", "cannot read <path>"),
        ("cannot read C:\\logs\\app.log", "cannot read <path>"),
        ("yes/no", "yes/no"),
        ("took 3.5 s, 12ms and 3 minutes", "took <duration>, <duration> and <duration>"),
        ("10.0.0.7:6379 refused", "<address> refused"),
        ("fe80::1 and [::1]:6379 refused", "<address> and <address> refused"),
        ("std::bad_alloc", "std::bad_alloc"),
        ("not before 2026-01-31T09:30:00.123Z", "not before <time>"),
        ("not before 2026-01-31 09:30:00", "not before <time> <time>"),
        ("GET https://a.example/v1/7?x=1 failed", "GET <url> failed"),
        ("ada@example.org bounced", "<email> bounced"),
        ("two\n  lines\tand more", "two lines and more"),
        ("", ""),
    ],
)
def test_variable_parts_of_a_reason_are_replaced(reason: str, normalized: str) -> None:
    assert normalize(reason) == normalized


@pytest.mark.parametrize(
    "reason",
    ["x" * 10_000, "1" * 10_000, "a_" * 5_000, ":" * 10_000, "/a" * 5_000, "'" * 9_999, "a1" * 5_000, "\\" * 9_999],
)
def test_only_the_beginning_of_a_long_reason_is_processed(reason: str) -> None:
    assert len(normalize(reason)) <= MAX_COMPARED_LENGTH


@pytest.mark.parametrize(
    ("reason", "literal"),
    [
        ("HTTP 503 from the upstream server", "from the upstream server"),
        ("Boom", "Boom"),
        ("12 34", ""),
        ("failed\n after all", ""),
        ("word " * 60, ("word " * 20).strip()),
    ],
)
def test_all_reasons_of_a_group_contain_its_literal_text(reason: str, literal: str) -> None:
    assert longest_literal(reason) == literal
