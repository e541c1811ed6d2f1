"""Which faults a schedule has: drawn from its seed alone, with their targets and times.

A kind of fault is a block: the fault begins, lasts, and is over when the block ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tests.faults.world import World

FIRST, LAST = 0.8, 6.0  # seconds of a schedule in which faults begin
GAP = 0.5  # seconds between two faults of one target


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a schedule: seconds after its beginning, and what is drawn for it in addition to kind and target."""

    kind: Kind
    target: str
    begins: float
    lasts: float
    chance: float

    def happen(self, world: World) -> AbstractContextManager[None]:
        return self.kind.block(world, self)

    def one_of(self, *choices: float | str | int) -> float | str | int:
        return choices[int(self.chance * len(choices))]

    def __str__(self) -> str:
        return f"{self.kind.name} {self.target} {self.begins:.1f}+{self.lasts:.1f}"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault. `names` is what /readyz must name meanwhile; `weight` is how often it is drawn.

    `needs` returns True if it can happen on this machine. Only seeds from `since` on draw it: a seed
    keeps its meaning when kinds are added.
    """

    name: str
    block: Callable[[World, Fault], AbstractContextManager[None]]
    targets: tuple[str, ...]
    lasts: tuple[float, float]
    names: str | None = None
    weight: int = 1
    may_outlast_leases: bool = False
    sets_clock_of_rooms: bool = False
    needs: Callable[[], bool] | None = None
    since: int = 0


def kind(
    targets: tuple[str, ...],
    lasts: tuple[float, float],
    *,
    names: str | None = None,
    weight: int = 1,
    may_outlast_leases: bool = False,
    sets_clock_of_rooms: bool = False,
    needs: Callable[[], bool] | None = None,
    since: int = 0,
) -> Callable[[Callable[[World, Fault], Iterator[None]]], Kind]:
    """Declare a kind by its block; the name of the function is that of the kind."""

    def declare(block: Callable[[World, Fault], Iterator[None]]) -> Kind:
        return Kind(
            name=block.__name__.replace("_", "-"),
            block=contextmanager(block),
            targets=targets,
            lasts=lasts,
            names=names,
            weight=weight,
            may_outlast_leases=may_outlast_leases,
            sets_clock_of_rooms=sets_clock_of_rooms,
            needs=needs,
            since=since,
        )

    return declare


def draw(seed: int, kinds: Sequence[Kind]) -> list[Fault]:
    """Return the faults of a schedule, by their beginning. Those of one target follow one another."""
    chance = random.Random(seed)
    kinds = [one for one in kinds if one.since <= seed]
    free_at: dict[str, float] = {}
    faults = []
    for _ in range(chance.randint(2, 4)):
        (drawn,) = chance.choices(kinds, [one.weight for one in kinds])
        target = chance.choice(drawn.targets)
        begins = max(chance.uniform(FIRST, LAST), free_at.get(target, 0))
        lasts = chance.uniform(*drawn.lasts)
        free_at[target] = begins + lasts + GAP
        faults.append(Fault(kind=drawn, target=target, begins=begins, lasts=lasts, chance=chance.random()))
    return sorted(faults, key=lambda fault: fault.begins)
