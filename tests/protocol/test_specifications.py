"""The specifications hold in every state that can be reached, and every broken variant is caught.

The numbers of states are exact: a change of a specification shows here, and in docs/explanation/protocol.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dev.site.markdown import blocks
from tests.protocol.cases import BROKEN, LARGER, SPECIFICATIONS
from tests.protocol.checker import TRAP, Specification, Violated, explore

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "protocol.md"


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_specification_holds_in_every_state(name: str) -> None:
    specification, states = SPECIFICATIONS[name]
    assert explore(specification).states == states


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LARGER)
def test_specification_holds_in_every_state_of_larger_bounds(name: str) -> None:
    specification, states = LARGER[name]
    assert explore(specification).states == states


@pytest.mark.parametrize(
    ("specification", "violated"), BROKEN, ids=lambda one: one if isinstance(one, str) else type(one).__name__
)
def test_broken_variant_violates_an_invariant(specification: Specification[Any], violated: str) -> None:
    with pytest.raises(Violated) as caught:
        explore(specification)
    assert caught.value.name == violated


def test_every_invariant_is_violated_by_a_broken_variant() -> None:
    invariants = {name for one, _ in SPECIFICATIONS.values() for name in one.marked("is_invariant")}
    assert {violated for _, violated in BROKEN} == {*invariants, TRAP}


def test_page_has_the_numbers_of_states() -> None:
    text = PAGE.read_text()
    for name, (_, states) in {**SPECIFICATIONS, **LARGER}.items():
        assert f"| {name} | {states:,} |" in text


def test_page_shows_the_way_to_a_trap() -> None:
    (shown,) = [block.code for block in blocks(PAGE.read_text()) if block.language == "text"]
    with pytest.raises(Violated) as caught:
        explore(next(one for one, _ in BROKEN if type(one).__name__ == "LostMessageKeepsLease"))
    assert str(caught.value).startswith(shown)
