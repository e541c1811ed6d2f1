"""What every benchmark shares: filling collections, running ways in turn, medians, ranges and ratios.

Guarantee: a number is shown only after the result it belongs to was found right. A time never stands alone: beside
it are its range and how many times faster the first way was in the same round, on the same data.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

from pymongo.collection import Collection
from rich.progress import Progress

from benchmarks.explain import Explained, Recorder, different, explain

Document = dict[str, Any]
BATCH = 20_000  # documents in one insert: larger ones are no faster


class WrongResult(Exception):
    """A way did not bring what it must: no number of this run means anything."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to do the work. Only `run` is timed."""

    name: str
    run: Callable[[], Any]
    check: Callable[[Any], None]
    """Takes what `run` returned; raises `WrongResult`."""
    prepare: Callable[[], object] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Numbers of the rounds, in their order."""

    values: list[float]

    @property
    def median(self) -> float:
        return median(self.values)

    def __str__(self) -> str:
        return f"{_digits(self.median)} ({_digits(min(self.values))} to {_digits(max(self.values))})"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one benchmark found out; the first way is ours."""

    title: str
    data: str
    times: dict[str, Measured]
    """Seconds, by the way's name."""
    ratios: dict[str, Measured]
    """How many times as long as ours each other way took, round by round."""
    explained: list[Explained]
    load: tuple[float, float]
    """The machine's load average of one minute before and after."""
    rounds: int
    notes: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The means of a run: where progress is shown, how large the data are, and the recorder of statements."""

    progress: Progress
    recorder: Recorder
    divided_by: int

    def sized(self, full: int) -> int:
        return full // self.divided_by

    def fill(self, collection: Collection[Document], documents: Iterable[Document], count: int) -> None:
        """Insert `count` documents, with a bar."""
        bar = self.progress.add_task(f"filling {collection.name}", total=count)
        rest = iter(documents)
        while some := list(islice(rest, BATCH)):
            collection.insert_many(some, ordered=False)
            self.progress.advance(bar, len(some))

    def compare(
        self, title: str, data: str, ways: Sequence[Way], *, rounds: int = 3, notes: Sequence[str] = ()
    ) -> Result:
        """Run every way once a round, every other round in reverse order, and check each result.

        Ours, the first, runs once more before: it warms the server's cache for all, and its statements are explained.

        Raises:
            WrongResult: some way's result is not right.
        """
        bar = self.progress.add_task(f"measuring {title}", total=len(ways) * rounds + 1)
        load_before = os.getloadavg()[0]
        times: dict[str, list[float]] = {way.name: [] for way in ways}
        explained = self._explain(ways[0])
        self.progress.advance(bar)
        for number in range(rounds):
            for way in ways if number % 2 == 0 else reversed(ways):
                times[way.name].append(_timed(way))
                self.progress.advance(bar)
        ours = times[ways[0].name]
        return Result(
            title=title,
            data=data,
            times={name: Measured(values=values) for name, values in times.items()},
            ratios={
                way.name: Measured(values=[other / own for own, other in zip(ours, times[way.name], strict=True)])
                for way in ways[1:]
            },
            explained=explained,
            load=(load_before, os.getloadavg()[0]),
            rounds=rounds,
            notes=notes,
        )

    def _explain(self, way: Way) -> list[Explained]:
        way.prepare()
        with self.recorder.recording() as sent:
            way.run()
        way.prepare()  # so that the statements find again what they found
        return [explained for command in different(sent) for explained in explain(command)]


def expect(what: str, found: object, expected: object) -> None:
    """Raise `WrongResult` unless `found` is `expected`."""
    if found != expected:
        raise WrongResult(f"{what}: found {_short(found)}, expected {_short(expected)}")


def _timed(way: Way) -> float:
    way.prepare()
    began = time.perf_counter()
    result = way.run()
    took = time.perf_counter() - began
    way.check(result)
    return took


def _digits(number: float) -> str:
    """Write three digits: 0.0123, 1.23, 12.3, 1,234."""
    return f"{number:,.0f}" if number >= 100 else f"{number:#.3g}"


def _short(value: object) -> str:
    return f"{len(value):,} of them" if isinstance(value, set | list | dict) and len(value) > 5 else repr(value)
