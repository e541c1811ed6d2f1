"""The goals of `make size` that need no servers."""

from __future__ import annotations

from benchmarks.size import new_system, repeated_names


def test_few_capitalised_names_are_defined_in_several_modules() -> None:
    names, count = repeated_names()
    assert len(names) <= 15, names
    assert count > 500


def test_a_new_system_is_one_short_file() -> None:
    files, lines = new_system()
    assert files == 1
    assert 10 < lines <= 26
