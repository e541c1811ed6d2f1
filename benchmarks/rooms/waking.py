"""Many rooms due at once: from the beginning of one scan until every room is open and its event was heard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from statistics import median

from benchmarks.harness import Bench, Document, Figure, Result, Run, Table, Way, percentile
from benchmarks.release import MISSING, RELEASE
from benchmarks.rooms.contenders import (
    Contender,
    find_and_update,
    first,
    hand_tuned,
    has_node_packages,
    node,
    ours,
    release,
)
from benchmarks.rooms.processes import Cost
from benchmarks.rooms.trial import Trial, Woken, scan_once
from benchmarks.snooze_scan import documents
from models import database, support_room

ROOMS, DUE = 100_000, 10_000
FEW, FEW_DUE = 5_000, 1_000
BACKLOG = 200_000
FEW_TITLE = "few rooms woken"
CONVERSATION = "x" * 500  # a room has about 700 bytes
NOTES = [
    "Ours and 0.1 use the commands of their Procfiles. Every run starts all processes, which have scanned once before;",
    "those of Celery log at INFO, and send events for Flower, but the tuned one. Each way has its own indexes.",
    "Checked: every due room is open and had one event, none was woken twice, no other was touched. A wait is from the",
    "dispatch of the scan to `unsnoozed_at`.",
]


def many(bench: Bench, *, servers: dict[str, int]) -> Result:
    """Measure ours, its earlier release and what others do."""
    with ExitStack() as stack:
        others = [first(), hand_tuned(), find_and_update()]
        if (earlier := stack.enter_context(release())) is not None:
            others.insert(0, earlier)
        else:
            bench.progress.console.print(f"Without {RELEASE}: {MISSING}")
        if has_node_packages():
            others += [node("bull", 50), node("bullmq", 50)]
        else:
            bench.progress.console.print("Without Bull and BullMQ, which `make bench` installs")
        return compare(bench, "rooms woken", bench.sized(ROOMS), bench.sized(DUE), servers, others, rounds=5)


def between(bench: Bench, *, servers: dict[str, int]) -> Result:
    """Measure what the parts are worth: ours without each of them, and the first attempt with one."""
    others = [
        ours("ours on the stock transport", "benchmarks.rooms.stock_transport"),
        ours("ours without batches", "benchmarks.rooms.without_batches"),
        first("first written, on our transport", "benchmarks.rooms.first_attempt_batched"),
    ]
    return compare(bench, "rooms woken, part by part", bench.sized(ROOMS), bench.sized(DUE), servers, others)


def few(bench: Bench, *, servers: dict[str, int], rounds: int = 3) -> Result:
    """Measure ours and the first attempt in short: what `tests/e2e/test_ratios.py` repeats."""
    return compare(bench, FEW_TITLE, FEW, FEW_DUE, servers, [first()], rounds=rounds)


def backlog(bench: Bench, *, servers: dict[str, int]) -> Result:
    """Measure a backlog that is larger than the queue may be (`QM_MAX_QUEUE`), with a scan every ten seconds."""
    rooms = bench.sized(BACKLOG)
    with release() as earlier:
        others = [] if earlier is None else [earlier]
        return compare(bench, "backlog of rooms woken", rooms, rooms, servers, others)


def compare(
    bench: Bench,
    title: str,
    rooms: int,
    due: int,
    servers: dict[str, int],
    others: Sequence[Contender],
    *,
    rounds: int = 3,
) -> Result:
    """Measure ours and others."""

    def all_rooms() -> Iterator[Document]:
        return ({**room, "conversation": CONVERSATION} for room in documents(rooms, due, database.server_now()))

    trial = Trial(rooms=rooms, due=due, make=lambda: islice(all_rooms(), due), servers=servers)
    bench.fill(support_room.rooms(), all_rooms(), rooms)
    ways = [trial.way(contender, scan_once) for contender in (ours(), *others)]
    runs: dict[str, list[Woken]] = {way.name: [] for way in ways}
    try:
        result = bench.compare(
            title,
            f"{rooms:,} rooms, {due:,} of them due",
            [_kept(way, runs[way.name]) for way in ways],
            figures=[
                Figure(heading="seconds", of=lambda run: run.result.seconds),
                Figure(heading="rooms/s", of=lambda run: due / run.result.seconds),
                Figure(heading="p50 wait, ms", of=lambda run: wait(run, 50)),
                Figure(heading="p99 wait, ms", of=lambda run: wait(run, 99)),
                Figure(heading="CPU s", of=lambda run: run.result.processor_seconds),
            ],
            rounds=rounds,
            notes=NOTES,
            warm_up=False,
        )
    finally:
        trial.close()
    return replace(result, tables=[_costs(runs)])


def wait(run: Run, percent: int) -> float:
    """Return a percentile of a run's waits, in ms."""
    return percentile(run.result.waits, percent) * 1000


def _kept(way: Way, runs: list[Woken]) -> Way:
    """Keep every result that was found right."""

    def check(woken: Woken) -> None:
        way.check(woken)
        runs.append(woken)

    return replace(way, check=check)


def _costs(runs: dict[str, list[Woken]]) -> Table:
    kinds = list(dict.fromkeys(kind for of_way in runs.values() for woken in of_way for kind in woken.costs))
    return Table(
        caption="Processor time and most memory of each kind of process, medians:",
        headings=["way", *kinds],
        rows=[[way, *(_cost(of_way, kind) for kind in kinds)] for way, of_way in runs.items()],
    )


def _cost(runs: list[Woken], kind: str) -> str:
    costs = [woken.costs.get(kind, Cost()) for woken in runs]
    spent, most = median(cost.seconds for cost in costs), median(cost.megabytes for cost in costs)
    return f"{spent:.2f} s, {most:.0f} MB" if most else "-"
