"""What every benchmark shares: filling collections, running ways in turn, medians, ranges and ratios.

Guarantee: a number is shown only after the result it belongs to was found right. A figure never stands alone: next
to it are its range and, for the first of a way, how many times as much it is as the first way's in the same round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median, quantiles
from typing import Any

from pymongo.collection import Collection
from rich.progress import Progress

from benchmarks.explain import Explained, Recorder, different, explain
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import Settings, settings

Document = dict[str, Any]
BATCH = 20_000  # documents in one insert: larger ones are no faster
EVERYTHING_ON = dict.fromkeys(
    ("QM_CONVERSATIONS", "QM_PROJECTS", "QM_SITES_FIX_STALE_THUMBNAILS", "QM_MESSAGE_QUEUE", "QM_JOBS"), "true"
)


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
class Run:
    """One run of a way whose result was found right."""

    result: Any
    seconds: float
    server_seconds: float
    """Processor time that the server spent meanwhile; 0 when nobody asked it."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number of every run. Of the first figure of a benchmark, by which the ways are compared, less is better."""

    heading: str
    of: Callable[[Run], float]


def set_environment(**names: str) -> None:
    """Set the settings to `names` and all others to their defaults, ignoring the environment."""
    for name in Settings.model_fields:
        os.environ.pop(name.upper(), None)
    os.environ.update(names, APP_ENV="production")
    settings.cache_clear()


def end_leases() -> None:
    """Empty Redis, so that everything that is due may be dispatched again."""
    with connect(settings().redis_url) as client:
        client.flushall()


SECONDS = Figure(heading="seconds", of=lambda run: run.seconds)


@dataclass(frozen=True, kw_only=True)
class Table:
    """What else a benchmark found out, by rows."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Numbers of the rounds, in their order."""

    values: list[float]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def short(self) -> str:
        return _digits(self.median)

    def __str__(self) -> str:
        return f"{self.short} ({_digits(min(self.values))} to {_digits(max(self.values))})"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one benchmark found out; the first way is what the others are compared with."""

    title: str
    data: str
    figures: dict[str, dict[str, Measured]]
    """By heading, then by the way's name."""
    ratios: dict[str, Measured]
    """How many times the first way's first figure each other way's is, round by round."""
    compared: str
    """The heading of the ratios."""
    explained: list[Explained]
    tables: Sequence[Table]
    load: tuple[float, float]
    """The machine's load average of one minute before and after."""
    rounds: int
    notes: Sequence[str]
    server: str = ""
    """Name and version of the server, or what else the figures depend on."""

    @property
    def ways(self) -> list[str]:
        return list(next(iter(self.figures.values())))


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The means of a run: where progress is shown, how large the data are, and the recorder of statements."""

    progress: Progress
    divided_by: int
    recorder: Recorder = field(default_factory=Recorder)

    @property
    def is_quick(self) -> bool:
        return self.divided_by > 1

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
        self,
        title: str,
        data: str,
        ways: Sequence[Way],
        *,
        rounds: int = 3,
        notes: Sequence[str] = (),
        figures: Sequence[Figure] = (SECONDS,),
        compared: str = "times ours",
        tables: Sequence[Table] = (),
        server_clock: Callable[[], float] | None = None,
        warm_up: bool = True,
    ) -> Result:
        """Run every way once a round, every other round in reverse order, and check each result.

        The first way runs once more before, to warm the server's cache for all, and its statements are explained.

        Args:
            server_clock: returns the processor time, in seconds, that the server has spent.

        Raises:
            WrongResult: some way's result is not right.
        """
        bar = self.progress.add_task(f"measuring {title}", total=len(ways) * rounds + warm_up)
        load_before = os.getloadavg()[0]
        runs: dict[str, list[Run]] = {way.name: [] for way in ways}
        explained = self._explain(ways[0]) if warm_up else []
        self.progress.advance(bar, warm_up)
        for number in range(rounds):
            for way in ways if number % 2 == 0 else reversed(ways):
                runs[way.name].append(_measured(way, server_clock or _no_clock))
                self.progress.advance(bar)
        return Result(
            title=title,
            data=data,
            figures={
                figure.heading: {name: Measured(values=[figure.of(run) for run in of]) for name, of in runs.items()}
                for figure in figures
            },
            ratios=_ratios(figures[0], list(runs.items())),
            compared=compared,
            explained=explained,
            tables=tables,
            load=(load_before, os.getloadavg()[0]),
            rounds=rounds,
            notes=notes,
        )

    def _explain(self, way: Way) -> list[Explained]:
        way.prepare()
        with self.recorder.recording() as sent:
            way.run()
        if sent:
            way.prepare()  # so that the statements find again what they found
        return [explained for command in different(sent) for explained in explain(command)]


def expect(what: str, found: object, expected: object) -> None:
    """Raise `WrongResult` unless `found` is `expected`."""
    if found != expected:
        raise WrongResult(f"{what}: found {_short(found)}, expected {_short(expected)}")


def percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _measured(way: Way, server_clock: Callable[[], float]) -> Run:
    way.prepare()
    server_began, began = server_clock(), time.perf_counter()
    result = way.run()
    took, server_took = time.perf_counter() - began, server_clock() - server_began
    way.check(result)
    return Run(result=result, seconds=took, server_seconds=server_took)


def _ratios(figure: Figure, runs: Sequence[tuple[str, list[Run]]]) -> dict[str, Measured]:
    (_, ours), *others = runs
    return {
        name: Measured(values=[figure.of(other) / figure.of(own) for own, other in zip(ours, of, strict=True)])
        for name, of in others
    }


def _no_clock() -> float:
    return 0.0


def _digits(number: float) -> str:
    """Write three digits: 0.0123, 1.23, 12.3, 1,234; and 0."""
    return f"{number:,.0f}" if number >= 100 or number == 0 else f"{number:#.3g}"


def _short(value: object) -> str:
    return f"{len(value):,} of them" if isinstance(value, set | list | dict) and len(value) > 5 else repr(value)
