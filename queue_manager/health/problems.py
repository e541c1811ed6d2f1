"""The problems that the rules of health find in what was read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from beat_schedule import systems, warnings
from queue_manager import leases
from queue_manager.core.clock import MAX_CLOCK_SKEW, seconds
from queue_manager.core.settings import redact_url, settings
from queue_manager.core.wording import MAX_IDS, clock, first_ids, many, rounded
from queue_manager.health.readings import LEADER, WORKERS, InMongoDB, InRedis, Readings
from queue_manager.health_rules import Problem, Rule, by_severity
from queue_manager.system import SCANS_QUEUE, System, item_queues
from queue_manager.telemetry import worker_heartbeats


def all_problems(readings: Readings) -> list[Problem]:
    """Return the problems of the components and of every system, critical ones first."""
    of_systems = (problem for system in systems() for problem in problems_of_system(system, readings))
    return by_severity([*problems_of_components(readings), *of_systems])


def problems_of_components(readings: Readings) -> list[Problem]:
    """Return the problems that are those of no single system, critical ones first."""
    return by_severity([*_of_servers(readings), *_of_processes(readings.in_redis), *_of_settings()])


def problems_of_system(system: System, readings: Readings) -> list[Problem]:
    """Return the problems of one system, critical ones first. One that is off has none."""
    if not system.is_on(settings()):
        return []
    found = dict([*_of_scan(system, readings), *_of_queue(system, readings.in_redis), *_of_items(system, readings)])
    is_idle = readings.idle(system) is not None
    return by_severity(
        Problem(
            system=system.name, rule=rule, text=text, page=None if rule.state is None else system.page_of(rule.state)
        )
        for rule, text in found.items()
        if not (is_idle and rule.unless_idle)
    )


# Components


def _of_servers(readings: Readings) -> Iterator[Problem]:
    for answer in (readings.redis, readings.broker, readings.mongodb):
        if isinstance(answer, Problem):
            yield answer
    redis, mongo = readings.in_redis, readings.in_mongodb
    if redis is not None and redis.refused_writes is not None:
        text = f"Redis at {redact_url(settings().redis_url)} refuses writes ({redis.refused_writes})"
        yield Problem(system="redis", rule=Rule.REFUSED_WRITES, text=text)
    if redis is not None and redis.unread:
        text = f"Could not read {', '.join(redis.unread)}: {next(iter(redis.unread.values()))}"
        yield Problem(system="redis", rule=Rule.WRONG_TYPES, text=text)
    if mongo is not None and mongo.missing_shared_indexes:
        text = _missing(mongo.missing_shared_indexes)
        yield Problem(system="mongodb", rule=Rule.MISSING_INDEXES, text=text)
    if (apart := _clocks_apart(redis, mongo)) is not None:
        yield Problem(system="clocks", rule=Rule.CLOCKS_APART, text=apart)


def _clocks_apart(redis: InRedis | None, mongo: InMongoDB | None) -> str | None:
    ahead = {"Redis": redis, "MongoDB": mongo}
    clocks = {"this machine": seconds(0)} | {name: one.clock_ahead for name, one in ahead.items() if one is not None}
    first, last = (choose(clocks, key=clocks.__getitem__) for choose in (min, max))
    apart = clocks[last] - clocks[first]
    if apart <= MAX_CLOCK_SKEW:
        return None
    return f"The clock of {last} is {apart.total_seconds():.1f} s ahead of that of {first}"


def _of_processes(redis: InRedis | None) -> Iterator[Problem]:
    """Yield the problems of beat and workers, which all systems need, and of the broker's dead letters."""
    if redis is None:
        return
    if redis.dead_letters:
        text = f"{many(redis.dead_letters, 'Celery message')} could not be decoded or dispatched"
        yield Problem(system="broker", rule=Rule.DEAD_LETTERS, text=text)
    if redis.older_leader is not None:
        text = f"A beat of release 0.1 leads ({redis.older_leader}), and newer ones stand by"
        yield Problem(system="beat", rule=Rule.OLD_LEADER, text=text)
    elif redis.leader is None and LEADER not in redis.unread:
        text = "No beat is the leader, so no scans run"
        yield Problem(system="beat", rule=Rule.NO_LEADER, text=text)
    if paused := [f"{worker.name}: {worker.paused}" for worker in redis.workers if worker.paused is not None]:
        of = f"{len(paused)} of {many(len(redis.workers), 'worker')}"
        text = f"{of} cannot reach MongoDB and cannot take items: {'; '.join(paused[:MAX_IDS])}"
        yield Problem(system="workers", rule=Rule.PAUSED_WORKERS, text=text)
    on = [system for system in systems() if system.is_on(settings())]
    if not on or redis.are_workers_starting or WORKERS in redis.unread:
        return
    if not redis.workers:
        queues = ", ".join([SCANS_QUEUE, *item_queues(on)])
        text = f"No worker is online to consume the queues {queues}"
        yield Problem(system="workers", rule=Rule.NO_WORKERS, text=text)
    elif worker_heartbeats.unconsumed(redis.workers, [SCANS_QUEUE]):
        text = f"No worker consumes the queue {SCANS_QUEUE}, so no scan runs"
        yield Problem(system="workers", rule=Rule.QUEUE_WITHOUT_WORKER, text=text)


def _of_settings() -> Iterator[Problem]:
    if found := warnings():
        yield Problem(system="settings", rule=Rule.SETTINGS_WARNING, text="; ".join(found))


# One system


def _of_scan(system: System, readings: Readings) -> Iterator[tuple[Rule, str]]:
    mongo = readings.in_mongodb
    if mongo is None:
        return
    if missing := mongo.missing_indexes[system.name]:
        yield Rule.MISSING_INDEXES, _missing(missing)
    run = mongo.last_runs[system.name]
    if run is None or mongo.now - run.at > system.late_after(settings()):
        if not readings.is_starting(system):
            last = "it has not run in the last 24 hours"
            if run is not None:
                last = f"it last ran at {clock(run.at, mongo.now)}"
            yield Rule.LATE_SCAN, f"The scan is late: {last}"
    elif run.errors:
        yield Rule.SCAN_ERRORS, f"The last scan had {many(run.errors, 'error')}: {run.error}"


def _of_queue(system: System, redis: InRedis | None) -> Iterator[tuple[Rule, str]]:
    if redis is None or system.queue is None:
        return
    if lost := redis.losses[system.name]:
        yield (
            Rule.LOST_ITEMS,
            f"The process died or hung at least {leases.OFTEN_LOST} times in a row in {many(len(lost), 'item')} "
            f"({first_ids(lost, len(lost))})",
        )
    is_known = redis.workers and not redis.are_workers_starting
    if is_known and worker_heartbeats.unconsumed(redis.workers, [system.queue]):
        yield (
            Rule.QUEUE_WITHOUT_WORKER,
            f"No worker consumes the queue {system.queue}, so its items are not handled",
        )


def _of_items(system: System, readings: Readings) -> Iterator[tuple[Rule, str]]:
    stats, mongo = readings.stats[system.name], readings.in_mongodb
    if isinstance(stats, Problem):
        if mongo is not None and not mongo.missing_indexes[system.name]:  # problems of their own, which are the cause
            yield stats.rule, stats.text
        return
    lag, limit = seconds(readings.numbers_of(system.name).get("lag_seconds", 0)), system.late_after(settings())
    if lag > limit and system.has_lag:
        which = f" ({', '.join(stats.late[:MAX_IDS])})" if stats.late else ""
        yield (
            Rule.LAG,
            f"The oldest due item has waited {rounded(lag)}, more than {rounded(limit)}{which}",
        )
    yield from stats.problems.items()


def _missing(indexes: Sequence[str]) -> str:
    return f"Missing in MongoDB: {first_ids(indexes, len(indexes))}"
