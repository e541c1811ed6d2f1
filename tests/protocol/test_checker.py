"""The checker finds shortest counterexamples and traps."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.protocol.checker import TRAP, Explored, Specification, Steps, Violated, explore, invariant, step


@dataclass(frozen=True)
class Counter(Specification[int]):
    """Counts to ten by ones or threes; nobody leaves `ends`."""

    forbidden: int = 11
    ends: tuple[int, ...] = (10,)

    def initial(self) -> int:
        return 0

    @step
    def one(self, count: int) -> Steps[int]:
        if count < 10 and count not in self.ends:
            yield "one more", count + 1

    @step
    def three(self, count: int) -> Steps[int]:
        if count < 8 and count not in self.ends:
            yield "three more", count + 3

    @invariant
    def is_allowed(self, count: int) -> bool:
        return count != self.forbidden

    def is_settled(self, count: int) -> bool:
        return count == 10


class Reset(Counter):
    def one(self, count: int) -> Steps[int]:
        yield "back", 0


def test_every_state_is_visited_once() -> None:
    assert explore(Counter()) == Explored(states=11, steps=18, depth=4)


def test_counterexample_is_shortest() -> None:
    with pytest.raises(Violated) as caught:
        explore(Counter(forbidden=7))
    assert caught.value.name == "is_allowed"
    assert sorted(caught.value.way) == ["one more", "three more", "three more"]
    assert "  3. " in str(caught.value)


def test_state_from_which_the_end_cannot_be_reached_is_a_trap() -> None:
    with pytest.raises(Violated) as caught:
        explore(Counter(ends=(4, 10)))
    assert (caught.value.name, caught.value.state) == (TRAP, 4)


def test_a_variant_may_override_a_step() -> None:
    with pytest.raises(Violated) as caught:
        explore(Reset())
    assert caught.value.name == TRAP
