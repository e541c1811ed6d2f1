"""Explore the specifications, and show a counterexample of each broken variant: `python -m tests.protocol`."""

from __future__ import annotations

from tests.protocol.cases import BROKEN, SPECIFICATIONS
from tests.protocol.checker import Violated, explore

for name, (specification, _) in SPECIFICATIONS.items():
    found = explore(specification)
    print(f"{name}: {found.states:,} states, {found.steps:,} steps, every invariant holds, no trap")

for broken, _violated in BROKEN:
    print(f"\n{broken}: {broken.__doc__}")
    try:
        explore(broken)
    except Violated as counterexample:
        print(counterexample)
