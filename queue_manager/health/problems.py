"""The problems that the rules of health find in what was read.

The outcome of a rule is a problem, no problem, or unknown: what it needs was not read, another problem hides it, or it
does not apply now. The functions below yield the text or `None`, and nothing for a rule whose outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from beat_schedule import systems, warnings
from models.alert import Key
from queue_manager import leases
from queue_manager.core.clock import MAX_CLOCK_SKEW, seconds
from queue_manager.core.settings import redact_url, settings
from queue_manager.core.wording import MAX_IDS, clock, first_ids, many, rounded
from queue_manager.health.readings import InMongoDB, InRedis, Readings
from queue_manager.health_rules import Problem, Rule, by_severity
from queue_manager.system import SCANS_QUEUE, System, item_queues
from queue_manager.telemetry import worker_heartbeats

Outcomes = dict[Key, Problem | None]
"""The problem, or `None` if there is none, by each rule whose outcome is known."""

_OF_SCAN = (Rule.MISSING_INDEXES, Rule.LATE_SCAN, Rule.SCAN_ERRORS)
_OF_QUEUE = (Rule.LOST_ITEMS, Rule.QUEUE_WITHOUT_WORKER)
_STOP_SCANS = (Rule.SERVER_AWAY, Rule.REFUSED_WRITES)
"""While a server has one of these, late scans are a consequence."""
_PAGES = {Rule.DEAD_LETTERS: "/failures?system=broker"}
"""The pages that list what a problem of a component is about."""
_OF_STATS = [rule for rule in Rule if rule not in (*_OF_SCAN, *_OF_QUEUE, Rule.LAG)]
"""The rules whose outcome is known if the statistics of a system were read; that of `lag` may be missing in them."""


def outcomes(readings: Readings) -> Outcomes:
    """Return the outcomes of the components, and of every system that is on."""
    found = _of_components(readings)
    for system in systems():
        found |= _of_system(system, readings)
    return found


def all_problems(readings: Readings) -> list[Problem]:
    """Return the problems of the components and of every system, critical ones first."""
    return _problems(outcomes(readings))


def problems_of_components(readings: Readings) -> list[Problem]:
    """Return the problems that are those of no single system, critical ones first."""
    return _problems(_of_components(readings))


def problems_of_system(system: System, readings: Readings) -> list[Problem]:
    """Return the problems of one system, critical ones first. One that is off has none."""
    return _problems(_of_system(system, readings))


def _problems(found: Outcomes) -> list[Problem]:
    return by_severity(problem for problem in found.values() if problem is not None)


def _of_components(readings: Readings) -> Outcomes:
    found = (*_of_servers(readings), *_of_processes(readings), *_of_settings())
    return {
        Key(name, rule.id): None if text is None else Problem(system=name, rule=rule, text=text, page=_PAGES.get(rule))
        for name, rule, text in found
    }


def _of_system(system: System, readings: Readings) -> Outcomes:
    if not system.is_on(settings()):
        return {}
    found = dict([*_of_scan(system, readings), *_of_queue(system, readings), *_of_items(system, readings)])
    is_idle = readings.idle(system) is not None
    return {
        Key(system.name, rule.id): None if text is None else _problem(system, rule, text)
        for rule, text in found.items()
        if not (is_idle and rule.unless_idle)
    }


def _problem(system: System, rule: Rule, text: str) -> Problem:
    page = None if rule.state is None else system.page_of(rule.state)
    return Problem(system=system.name, rule=rule, text=text, page=page)


# Components


def _of_servers(readings: Readings) -> Iterator[tuple[str, Rule, str | None]]:
    for name, answer in (("redis", readings.redis), ("broker", readings.broker), ("mongodb", readings.mongodb)):
        if isinstance(answer, Problem):
            yield answer.system, answer.rule, answer.text
            if answer.rule is not Rule.SERVER_AWAY:  # it answers
                yield answer.system, Rule.SERVER_AWAY, None
        else:
            yield from ((name, rule, None) for rule in (Rule.SERVER_AWAY, Rule.SERVER_UNSUITABLE, Rule.REFUSED_WRITES))
    redis, mongo = readings.in_redis, readings.in_mongodb
    if mongo is not None and (refusal := readings.mongodb_writes) is not None:
        yield refusal.system, refusal.rule, refusal.text
    if redis is not None and redis.refused_writes is not None:
        text = f"Redis at {redact_url(settings().redis_url)} refuses writes ({redis.refused_writes})"
        yield "redis", Rule.REFUSED_WRITES, text
    if mongo is not None:
        missing = mongo.missing_shared_indexes
        yield "mongodb", Rule.MISSING_INDEXES, _missing(missing) if missing else None
    apart = _clocks_apart(redis, mongo)
    if apart is not None or (redis is not None and mongo is not None):
        yield "clocks", Rule.CLOCKS_APART, apart


def _clocks_apart(redis: InRedis | None, mongo: InMongoDB | None) -> str | None:
    ahead = {"Redis": redis, "MongoDB": mongo}
    clocks = {"this machine": seconds(0)} | {name: one.clock_ahead for name, one in ahead.items() if one is not None}
    first, last = (choose(clocks, key=clocks.__getitem__) for choose in (min, max))
    apart = clocks[last] - clocks[first]
    if apart <= MAX_CLOCK_SKEW:
        return None
    return f"The clock of {last} is {apart.total_seconds():.1f} s ahead of that of {first}"


def _of_processes(readings: Readings) -> Iterator[tuple[str, Rule, str | None]]:
    """Yield the outcomes of beat and workers, which all systems need, and of the broker's dead letters."""
    if (redis := readings.in_redis) is None:
        return
    if redis.dead_letters is not None:
        text = f"{many(redis.dead_letters, 'Celery message')} could not be decoded or dispatched"
        yield "broker", Rule.DEAD_LETTERS, text if redis.dead_letters else None
    old = redis.older_leader
    text = f"A beat of release 0.1 leads ({old}), and newer ones stand by"
    yield "beat", Rule.OLD_LEADER, None if old is None else text
    has_leader = redis.leader is not None or old is not None
    yield "beat", Rule.NO_LEADER, None if has_leader else "No beat is the leader, so no scans run"
    if redis.workers and readings.in_mongodb is not None:  # otherwise MongoDB is the cause
        paused = [f"{worker.name}: {worker.paused}" for worker in redis.workers if worker.paused is not None]
        of = f"{len(paused)} of {many(len(redis.workers), 'worker')}"
        text = f"{of} cannot reach MongoDB and cannot take items: {'; '.join(paused[:MAX_IDS])}"
        yield "workers", Rule.PAUSED_WORKERS, text if paused else None
    if redis.are_workers_starting:
        return
    on = [system for system in systems() if system.is_on(settings())]
    text = f"No worker is online to consume the queues {', '.join([SCANS_QUEUE, *item_queues(on)])}"
    yield "workers", Rule.NO_WORKERS, text if on and not redis.workers else None
    if redis.workers or not on:
        is_missing = on and worker_heartbeats.unconsumed(redis.workers, [SCANS_QUEUE])
        text = f"No worker consumes the queue {SCANS_QUEUE}, so no scan runs"
        yield "workers", Rule.QUEUE_WITHOUT_WORKER, text if is_missing else None


def _of_settings() -> Iterator[tuple[str, Rule, str | None]]:
    yield "settings", Rule.SETTINGS_WARNING, "; ".join(warnings()) or None


# One system


def _of_scan(system: System, readings: Readings) -> Iterator[tuple[Rule, str | None]]:
    mongo = readings.in_mongodb
    if mongo is None:
        return
    if (missing := mongo.missing_indexes.get(system.name)) is not None:  # its `collections` raised no error
        yield Rule.MISSING_INDEXES, _missing(missing) if missing else None
    run = mongo.last_runs[system.name]
    if run is not None and mongo.now - run.at <= system.late_after(settings()):
        yield Rule.LATE_SCAN, None
        text = f"The last scan had {many(run.errors, 'error')}: {run.error}"
        yield Rule.SCAN_ERRORS, text if run.errors else None
    elif not readings.is_starting(system) and not _are_scans_stopped(readings):
        last = "it has not run in the last 24 hours"
        if run is not None:
            last = f"it last ran at {clock(run.at, mongo.now)}"
        yield Rule.LATE_SCAN, f"The scan is late: {last}"


def _are_scans_stopped(readings: Readings) -> bool:
    """Return True while scans cannot be sent, run or recorded, because of a server that has a problem of its own."""
    return any(text is not None and rule in _STOP_SCANS for _, rule, text in _of_servers(readings))


def _of_queue(system: System, readings: Readings) -> Iterator[tuple[Rule, str | None]]:
    if (redis := readings.in_redis) is None or system.queue is None:
        return
    lost = [id for id, end in redis.losses[system.name].items() if not _has_scan_passed(system, end, readings)]
    text = (
        f"The process died or hung at least {leases.OFTEN_LOST} times in a row in {many(len(lost), 'item')} "
        f"({first_ids(lost, len(lost))})"
    )
    yield Rule.LOST_ITEMS, text if lost else None
    if redis.workers and not redis.are_workers_starting:
        text = f"No worker consumes the queue {system.queue}, so its items are not handled"
        is_missing = worker_heartbeats.unconsumed(redis.workers, [system.queue])
        yield Rule.QUEUE_WITHOUT_WORKER, text if is_missing else None


def _has_scan_passed(system: System, end: datetime, readings: Readings) -> bool:
    """Return True if the last scan could have taken an item whose cool-down ended at `end`, if it were still due.

    A scan that was paused takes nothing, and one with errors may not have reached the item.
    """
    if readings.in_mongodb is None or readings.idle(system) is not None:
        return False
    run = readings.in_mongodb.last_runs[system.name]
    if run is None or run.errors or run.is_paused:
        return False
    return run.at - end > system.late_after(settings())


def _of_items(system: System, readings: Readings) -> Iterator[tuple[Rule, str | None]]:
    stats, mongo = readings.stats[system.name], readings.in_mongodb
    if isinstance(stats, Problem):
        # Missing indexes and a Redis that cannot be read are problems of their own, which are the cause.
        is_explained = readings.in_redis is None and "Redis" in system.stats_server
        if mongo is not None and not mongo.missing_indexes.get(system.name) and not is_explained:
            yield stats.rule, stats.text
        return
    lag_seconds = readings.numbers_of(system.name).get("lag_seconds")
    if lag_seconds is not None:
        lag, limit = seconds(lag_seconds), system.late_after(settings())
        which = f" ({', '.join(stats.late[:MAX_IDS])})" if stats.late else ""
        text = f"The oldest due item has waited {rounded(lag)}, more than {rounded(limit)}{which}"
        yield Rule.LAG, text if lag > limit else None
    yield from dict.fromkeys(_OF_STATS).items()
    yield from stats.problems.items()


def _missing(indexes: Sequence[str]) -> str:
    return f"Missing in MongoDB: {first_ids(indexes, len(indexes))}"
