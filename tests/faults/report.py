"""The figures of a run: shown at its end, and as a row of the table in `results.md`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from tests.faults.schedule import KINDS_OF_WORK, Result

AFTER_TABLE = "\n\n## What was found"


def summary(results: Sequence[Result]) -> Iterator[str]:
    """Yield lines: counts, recovery by kind of work, faults by kind."""
    yield ", ".join(f"{count:,} {what}" for what, count in _counts(results).items())
    for kind in KINDS_OF_WORK:
        took = _recovery(results, kind)
        if took:
            yield f"{kind}: recovered after {median(took):.1f} s (median), {max(took):.1f} s (maximum)"
    if waits := [span.servers_took for result in results for span in result.history.faults if span.servers_took]:
        yield f"MongoDB: had a majority again after {median(waits):.1f} s (median), {max(waits):.1f} s (maximum)"
    kinds = Counter(fault.kind.name for result in results for fault in result.faults)
    yield "faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def add_row(page: Path, results: Sequence[Result], load: float) -> None:
    """Add a row with the figures to the table of the page."""
    seeds = sorted(result.seed for result in results)
    recovery = [f"{median(took):.1f} / {max(took):.1f}" for kind in KINDS_OF_WORK if (took := _recovery(results, kind))]
    counts = [f"{count:,}" for count in _counts(results).values()]
    cells = [f"{datetime.now(UTC):%Y-%m-%d}", f"{seeds[0]} to {seeds[-1]}", *counts, *recovery, f"{load:.0f}"]
    before, heading, after = page.read_text().partition(AFTER_TABLE)
    page.write_text(f"{before}\n| {' | '.join(cells)} |{heading}{after}")


def _counts(results: Sequence[Result]) -> dict[str, int]:
    return {
        "schedules": len(results),
        "faults": sum(len(result.faults) for result in results),
        "wakes": sum(result.history.wakes for result in results),
        "messages": sum(len(result.history.sent) for result in results),
        "jobs": sum(len(result.history.jobs) for result in results),
        "violations": sum(len(result.violations) for result in results),
    }


def _recovery(results: Sequence[Result], kind: str) -> list[float]:
    return [took for result in results if (took := result.history.recovery[kind]) is not None]
