"""One schedule: its faults among its work, the recovery, and the verdict."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.faults import process_faults, server_faults
from tests.faults.faults import Fault, draw
from tests.faults.history import RECOVERY_LIMIT, FaultSpan, History, violations
from tests.faults.work import POLL_INTERVAL, SPAN, Work
from tests.faults.world import World

FAULTS = (*process_faults.KINDS, *server_faults.KINDS)
KINDS_OF_WORK = ("rooms", "events", "messages", "jobs")


@dataclass(frozen=True, kw_only=True)
class Result:
    seed: int
    faults: list[Fault]
    history: History
    violations: list[str]
    took: float

    @property
    def slowest(self) -> float:
        """The longest recovery in seconds."""
        return max(RECOVERY_LIMIT if took is None else took for took in self.history.recovery.values())

    @property
    def line(self) -> str:
        verdict = "ok" if not self.violations else f"{len(self.violations)} VIOLATIONS"
        recovery = ", ".join(
            f"{kind} {'-' if took is None else f'{took:.1f}'}" for kind, took in self.history.recovery.items()
        )
        return f"{self.seed}: {'; '.join(map(str, self.faults))} | recovered after: {recovery} s | {verdict}"


def run(world: World, seed: int) -> Result:
    """Run the schedule of this seed. What it leaves is cleared, and every process runs when it returns."""
    began, faults = time.monotonic(), possible(draw(seed, FAULTS))
    world.forget()
    harms, poison_jobs = process_faults.poisons(faults)
    work = Work(world, seed, harms, poison_jobs)
    with work.consumers():
        with work.production(), ThreadPoolExecutor(max(1, len(faults))) as threads:
            spans = list(threads.map(lambda fault: _happen(world, fault, began), faults))
        # The last work falls due at the end of the span.
        healed_at = max(began + SPAN, *(span.ended for span in spans))
        work.history.recovery = _recover(work, healed_at)
    work.history.faults = spans
    work.remove_poison()
    work.history.deaths = world.revive()
    try:
        world.wait_until_ready()
    except AssertionError as error:
        work.history.deaths.append(f"not ready again: {error}")
        world.write_stacks()
    history = work.collect()
    found = violations(history)
    work.clear()
    return Result(seed=seed, faults=faults, history=history, violations=found, took=time.monotonic() - began)


def possible(faults: list[Fault]) -> list[Fault]:
    """Return the faults that can happen here. The others are drawn, too, so that a seed means the same everywhere."""
    return [fault for fault in faults if fault.kind.needs is None or fault.kind.needs()]


def _happen(world: World, fault: Fault, schedule_began: float) -> FaultSpan:
    time.sleep(max(0.0, schedule_began + fault.begins - time.monotonic()))
    with world.locks[fault.target]:
        began = time.monotonic()
        with fault.happen(world):
            time.sleep(fault.lasts)
            lasted = time.monotonic()
        ended = time.monotonic()
    return FaultSpan(
        kind=fault.kind.name,
        target=fault.target,
        began=began,
        ended=ended if fault.kind.may_outlast_leases else lasted,
        names=fault.kind.names,
        may_outlast_leases=fault.kind.may_outlast_leases,
        sets_clock_of_rooms=fault.kind.sets_clock_of_rooms,
        servers_took=ended - lasted if fault.target == "mongodb" else 0.0,
    )


def _recover(work: Work, healed_at: float) -> dict[str, float | None]:
    """Wait until all work is done; return after how many seconds that of each kind was.

    The time counts from `healed_at`; that of rooms from when no poison room keeps others of its batch waiting. Its
    process is ended after the timeout of a batch, and later attempts are alone.
    """
    done_at: dict[str, float] = {}
    last_hanging = healed_at
    while (now := time.monotonic()) < healed_at + RECOVERY_LIMIT and len(done_at) < len(KINDS_OF_WORK):
        if work.hanging():
            last_hanging = now
        for kind in KINDS_OF_WORK:
            if kind not in done_at and work.is_done(kind):
                done_at[kind] = now
        time.sleep(POLL_INTERVAL)
    began = dict.fromkeys(KINDS_OF_WORK, healed_at) | {"rooms": last_hanging}
    return {kind: max(0.0, done_at[kind] - began[kind]) if kind in done_at else None for kind in KINDS_OF_WORK}
