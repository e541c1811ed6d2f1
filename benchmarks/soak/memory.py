"""The memory of processes over time, and whether it keeps growing.

A process that writes to a page that it has shared since the fork gets a copy: its share (PSS) grows, its size (RSS)
does not, and bounds it. A leak makes both grow.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.harness import WrongResult
from benchmarks.idle import proportional_megabytes, tree
from benchmarks.rooms.processes import resident

WARM_UP = 1 / 3  # of the samples: caches fill, and pages are written that were shared since the fork
MIN_SAMPLES = 6
MAX_GROWTH = 10.0  # MB per hour
EDGE = 6  # samples whose median is shown as the first and the last


class Sample(NamedTuple):
    """The memory of a process at one time, in MB."""

    proportional: float
    resident: float


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The memory of a process after the warm-up, in MB."""

    process: str
    first: float
    last: float
    per_hour: float
    """Of the PSS, like the two before."""
    resident_per_hour: float

    @property
    def is_leak(self) -> bool:
        return min(self.per_hour, self.resident_per_hour) > MAX_GROWTH


@dataclass(kw_only=True)
class Memory:
    """Samples of all processes of some trees, `roots` by name, and of `servers`, whose children are not counted: Redis
    forks one to rewrite its file. None of them may end or be replaced."""

    roots: Mapping[str, int]
    servers: Mapping[str, int]
    seconds: list[float] = field(default_factory=list)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    """By process."""

    def __post_init__(self) -> None:
        self._pids = self._processes()
        self.samples = {process: [] for process in self._pids}

    def sample(self) -> None:
        """Read the memory of every process. Raises WrongResult if one of them is not there."""
        if (now := self._processes()) != self._pids:
            raise WrongResult(f"processes changed: {sorted(set(self._pids.items()) ^ set(now.items()))}")
        self.seconds.append(time.monotonic())
        for process, pid in now.items():
            self.samples[process].append(Sample(proportional_megabytes(pid), resident(pid)))

    def growth(self) -> list[Growth]:
        """Return the growth of every process after the warm-up; nothing if that has not taken long enough to tell."""
        if len(self.seconds) < MIN_SAMPLES:
            return []
        begin = round(len(self.seconds) * WARM_UP)
        return [growth(process, self.seconds[begin:], of[begin:]) for process, of in self.samples.items()]

    def write(self, path: Path) -> None:
        """Write all samples as CSV, the warm-up too: two figures cannot tell a leak from a peak that was kept."""
        began = self.seconds[0] if self.seconds else 0.0
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(("process", "seconds", "pss_mb", "rss_mb"))
            for process, samples in self.samples.items():
                for at, sample in zip(self.seconds, samples, strict=True):
                    row = f"{at - began:.0f}", f"{sample.proportional:.1f}", f"{sample.resident:.1f}"
                    rows.writerow((process, *row))

    def _processes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, root in self.roots.items():
            main, *others = tree(root)
            found |= {name: main} | {f"{name}, child {number}": pid for number, pid in enumerate(sorted(others), 1)}
        return found | dict(self.servers)


def growth(process: str, seconds: Sequence[float], samples: Sequence[Sample]) -> Growth:
    """Return the growth of a process from its samples."""
    shares = [sample.proportional for sample in samples]
    return Growth(
        process=process,
        first=median(shares[:EDGE]),
        last=median(shares[-EDGE:]),
        per_hour=3600 * slope(seconds, shares),
        resident_per_hour=3600 * slope(seconds, [sample.resident for sample in samples]),
    )


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the median of the slopes between any two points (Theil and Sen): single peaks do not move it."""
    points = zip(times, values, strict=True)
    return median((later - earlier) / (end - begin) for (begin, earlier), (end, later) in combinations(points, 2))
