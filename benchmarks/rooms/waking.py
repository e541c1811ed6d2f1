"""Many rooms due at once: from the beginning of one scan until every room is open and its event was heard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from statistics import median

from beat_schedule import SYSTEMS
from benchmarks.harness import Bench, Document, Figure, Result, Run, Table, Way, percentile
from benchmarks.rooms import first_attempt
from benchmarks.rooms.processes import PLAIN, Cost, procfile_worker
from benchmarks.rooms.trial import Contender, Trial, Woken, scan_once
from benchmarks.snooze_scan import documents
from models import database, schema, support_room

ROOMS, DUE = 100_000, 10_000
FEW, FEW_DUE = 5_000, 1_000
FIRST = "Celery as first written"
FEW_TITLE = "few rooms woken"
SERVERS = ("mongod", "valkey")
_PROCESSES = [("worker 1", "worker 2"), ("its process 1", "its process 2"), ("scan",), *((name,) for name in SERVERS)]
NOTES = [
    "Two workers of one process each, started for every run and warm from a room each, ours by the Procfile's command;",
    "all log at INFO and send events for Flower. Each way has its own indexes and no others. Checked: every due room",
    "is open and had one event, none was woken twice, no other was touched. A wait is from the moment at which the",
    "sending of a room's message began to its `unsnoozed_at`.",
]


def ours(name: str = "ours", app: str = "tasks") -> Contender:
    return Contender(name, app, procfile_worker(), partial(schema.migrate, SYSTEMS))


def first(name: str = FIRST, app: str = "benchmarks.rooms.first_attempt") -> Contender:
    return Contender(name, app, PLAIN, lambda: support_room.rooms().create_index(first_attempt.INDEX))


def many(bench: Bench, *, servers: dict[str, int]) -> Result:
    """Measure ours, the first attempt, and what lies between them."""
    between = [
        ours("ours on the stock transport", "benchmarks.rooms.stock_transport"),
        ours("ours without groups", "benchmarks.rooms.without_batches"),
        first("first written, on our transport", "benchmarks.rooms.first_attempt_batched"),
    ]
    return _compare(bench, "rooms woken", bench.sized(ROOMS), bench.sized(DUE), servers, between)


def few(bench: Bench, *, servers: dict[str, int], rounds: int = 3) -> Result:
    """Measure ours and the first attempt in short: what `tests/benchmarks/test_ratios.py` repeats."""
    return _compare(bench, FEW_TITLE, FEW, FEW_DUE, servers, [], rounds=rounds)


def _compare(
    bench: Bench,
    title: str,
    rooms: int,
    due: int,
    servers: dict[str, int],
    between: Sequence[Contender],
    *,
    rounds: int = 3,
) -> Result:
    def all_rooms() -> Iterator[Document]:
        return documents(rooms, due, database.server_now())

    trial = Trial(rooms=rooms, due=due, make=lambda: islice(all_rooms(), due), servers=servers)
    bench.fill(support_room.rooms(), all_rooms(), rooms)
    ways = [trial.way(contender, scan_once) for contender in (ours(), first(), *between)]
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
    return Table(
        caption="Processor time and most memory of each process, medians; worker 1 + worker 2:",
        headings=["way", "workers", "their processes", "scan", *SERVERS],
        rows=[[way, *(_cost(of_way, *names) for names in _PROCESSES)] for way, of_way in runs.items()],
    )


def _cost(runs: list[Woken], *names: str) -> str:
    spent, most = [], 0.0
    for name in names:
        costs = [woken.costs.get(name, Cost()) for woken in runs]
        spent.append(median(cost.seconds for cost in costs))
        most = max(most, median(cost.megabytes for cost in costs))
    return f"{' + '.join(f'{of:.2f}' for of in spent)} s, {most:.0f} MB"
