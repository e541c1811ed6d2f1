"""An explicit-state checker: it visits every state that a specification can reach, breadth first.

A specification is a subclass of `Specification`. A method marked with `step` yields the states that can follow a state,
each with words for people. A method marked with `invariant` returns True if a state is right. From every state a state
must be reachable in which `is_settled` holds; a state from which none is, is a trap. Breadth first, so that the
counterexample of a violated invariant is a shortest one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

State = TypeVar("State", bound=Hashable)
Steps = Iterator[tuple[str, State]]
Method = TypeVar("Method", bound=Callable[..., Any])

TRAP = "trap"


def step(method: Method) -> Method:
    """Mark a method that yields the words and the state of each step that it allows in a state."""
    method.__dict__["is_step"] = True
    return method


def invariant(method: Method) -> Method:
    """Mark a method that must return True in every state."""
    method.__dict__["is_invariant"] = True
    return method


class Specification(ABC, Generic[State]):
    """A protocol: where it begins, its steps, and what must hold."""

    @abstractmethod
    def initial(self) -> State:
        """Return the state in which the protocol begins."""

    @abstractmethod
    def is_settled(self, state: State) -> bool:
        """Return True if everything that was begun is done."""

    def canonical(self, state: State) -> State:
        """Return the state that represents all those that differ from this one in nothing that matters."""
        return state

    def marked(self, mark: str) -> dict[str, Callable[[State], Any]]:
        """Return the marked methods by name, in their order; a subclass may override one without marking it."""
        members = [member for kind in reversed(type(self).__mro__) for member in vars(kind).items()]
        return {name: getattr(self, name) for name, method in members if getattr(method, mark, False)}

    def next_states(self, state: State) -> Steps[State]:
        for method in self.marked("is_step").values():
            yield from method(state)


@dataclass(frozen=True)
class Explored:
    """What was visited: states, the steps between them, and the length of the longest of the shortest ways."""

    states: int
    steps: int
    depth: int


class Violated(Exception):
    """An invariant does not hold, or a state is a trap; `way` is the shortest way there, in words."""

    def __init__(self, name: str, way: list[str], state: object) -> None:
        self.name, self.way, self.state = name, way, state
        steps = [f"{number:3}. {words}" for number, words in enumerate(way, 1)]
        super().__init__("\n".join([f"{name} is violated after", *steps, f"     {_shown(state)}"]))


def explore(specification: Specification[State]) -> Explored:
    """Visit every reachable state. Raises `Violated`."""
    steps = list(specification.marked("is_step").values())
    invariants = specification.marked("is_invariant")
    canonical = specification.canonical
    first = canonical(specification.initial())
    numbers = {first: 0}
    states, ways, origins = [first], [(0, "")], [list[int]()]

    def way_to(number: int) -> list[str]:
        words: list[str] = []
        while number:
            number, text = ways[number]
            words.insert(0, text)
        return words

    for number, state in enumerate(states):  # the list grows meanwhile
        for words, following in (one for method in steps for one in method(state)):
            if following not in numbers:
                represented = canonical(following)
                if represented not in numbers:
                    numbers[represented] = len(states)
                    states.append(represented)
                    ways.append((number, words))
                    origins.append([])
                    for name, holds in invariants.items():
                        if not holds(represented):
                            raise Violated(name, way_to(len(states) - 1), represented)
                numbers[following] = numbers[represented]
            origins[numbers[following]].append(number)
    settled = (number for number, state in enumerate(states) if specification.is_settled(state))
    safe = _reached(settled, origins)
    if len(safe) < len(states):
        trap = min(set(range(len(states))) - safe)
        raise Violated(TRAP, way_to(trap), states[trap])
    return Explored(states=len(states), steps=sum(map(len, origins)), depth=len(way_to(len(states) - 1)))


def reachable(specification: Specification[State]) -> Iterator[State]:
    """Yield every state that can be reached."""
    first = specification.canonical(specification.initial())
    known, waiting = {first}, [first]
    for state in waiting:  # the list grows meanwhile
        yield state
        for _, following in specification.next_states(state):
            if (represented := specification.canonical(following)) not in known:
                known.add(represented)
                waiting.append(represented)


def _shown(state: Any) -> str:
    """Return the text of a state; of a named tuple, the fields that differ from their default."""
    defaults = getattr(state, "_field_defaults", None)
    if defaults is None:
        return repr(state)
    return ", ".join(f"{name}={value!r}" for name, value in state._asdict().items() if value != defaults.get(name))


def _reached(start: Iterable[int], edges: list[list[int]]) -> set[int]:
    """Return the numbers that the edges lead to."""
    waiting = list(start)
    found = set(waiting)
    while waiting:
        for number in edges[waiting.pop()]:
            if number not in found:
                found.add(number)
                waiting.append(number)
    return found
