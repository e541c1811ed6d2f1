"""`/metrics` for Prometheus, read from Redis, MongoDB and the broker at each scrape.

Guarantee: the status is always 200. Metrics of a server that does not answer are left out, and `queue_manager_up`
reports it. Totals cover all processes, since Redis last lost its data.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from redis import Redis

from beat_schedule import systems
from models.due_documents import COUNTED
from queue_manager.beat.leader_lock import LEADER_LOCK, epoch_key
from queue_manager.beat.status import leadership
from queue_manager.broker import backlog
from queue_manager.broker.keys import DEFAULT_QUEUE
from queue_manager.core.errors import AppError
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.system import SCANS_QUEUE, System, item_queues
from queue_manager.telemetry import counters
from queue_manager.telemetry.counters import Totals
from queue_manager.web.server_calls import Unavailable, broker, mongodb, ping_mongodb, redis_server
from services.job_queues import jobs_by_state

SCAN_TOTALS = {
    "runs": "Runs of the scan.",
    "found": "Due items that the scan found.",
    "claimed": "Items whose lease the scan took.",
    "enqueued": "Items whose task the scan published.",
    "errors": "Errors in scans.",
}

log = get_logger("QM/metrics")
router = APIRouter()


@router.get("/metrics", response_class=PlainTextResponse)
def metrics() -> Response:
    """Return the metrics in the text format of Prometheus."""
    return Response(generate_latest(_registry), media_type=CONTENT_TYPE_LATEST)


class SystemsCollector(Collector):
    """Reads all metrics at each scrape."""

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("queue_manager_up", "1 if the server answers, 0 if not.", labels=["server"])
        parts = {"redis": _from_redis, "mongodb": _from_mongodb}
        if not _is_broker_at_redis_url():
            parts["broker"] = _from_broker
        for server, read in parts.items():
            try:
                found = list(read())
            except Unavailable as error:
                log.warning(f"Left out of the metrics: {error}")
                up.add_metric([server], 0)
            else:
                up.add_metric([server], 1)
                yield from found
        yield up


def _is_broker_at_redis_url() -> bool:
    return settings().broker == settings().redis_url


_registry = CollectorRegistry()
_registry.register(SystemsCollector())


def _from_redis() -> Iterator[Metric]:
    with redis_server() as client:
        counted = {system.name: system.counted_as for system in systems() if system.counted_as is not None}
        totals = counters.read(client, (*(system.scan_task for system in systems()), *counted.values()))
        yield from _scans({system.name: totals[system.scan_task] for system in systems()})
        yield _items({name: totals[key] for name, key in counted.items()})
        yield from _leader(client)
    if _is_broker_at_redis_url():
        yield from _from_broker()


def _scans(totals: dict[str, Totals]) -> Iterator[Metric]:
    for field, text in SCAN_TOTALS.items():
        counter = CounterMetricFamily(f"queue_manager_scan_{field}", text, labels=["system"])
        for system, of_system in totals.items():
            counter.add_metric([system], of_system.get(field, 0))
        yield counter
    duration = HistogramMetricFamily("queue_manager_scan_duration_seconds", "Duration of scans.", labels=["system"])
    for system, of_system in totals.items():
        taken = of_system.get("duration_ms", 0) / 1000
        duration.add_metric([system], buckets=counters.durations(of_system), sum_value=taken)
    yield duration


def _items(totals: dict[str, Totals]) -> Metric:
    items = CounterMetricFamily("queue_manager_items", "Attempts at items, by outcome.", labels=["system", "outcome"])
    for system, of_system in totals.items():
        for outcome in counters.OUTCOMES:
            items.add_metric([system, outcome], of_system.get(outcome, 0))
    return items


def _from_broker() -> Iterator[Metric]:
    queues = (DEFAULT_QUEUE, SCANS_QUEUE, *item_queues(systems()))
    waiting = GaugeMetricFamily("queue_manager_queue_messages", "Messages in the Celery queue.", labels=["queue"])
    with broker() as connection:
        for queue in queues:
            waiting.add_metric([queue], backlog.length_on(connection, queue))
        unacked = backlog.unacknowledged_on(connection)
        dead = backlog.dead_letters_on(connection)
    yield waiting
    if unacked is not None:
        yield GaugeMetricFamily(
            "queue_manager_unacked_messages", "Messages that workers have received and not acknowledged.", value=unacked
        )
    if dead is not None:
        yield GaugeMetricFamily("queue_manager_dead_letters", "Dead letters of the broker.", value=dead)


def _leader(client: Redis) -> Iterator[Metric]:
    leads = leadership(client, LEADER_LOCK) is not None
    epoch = int(client.get(epoch_key(LEADER_LOCK)) or 0)
    yield GaugeMetricFamily("queue_manager_leader", "1 if a beat is the leader, 0 if not.", value=leads)
    yield GaugeMetricFamily("queue_manager_leader_epoch", "Number of leader take-overs.", value=epoch)


def _from_mongodb() -> Iterator[Metric]:
    """Yield one gauge per statistic, with a value for each system that is switched on."""
    ping_mongodb()  # also when no system is on
    gauges: dict[str, GaugeMetricFamily] = {}
    for system in systems():
        if system.is_on(settings()):
            for name, number in _numbers(system).items():
                text = f"Statistic {name} of the system, as `queue-manager health` shows it."
                gauge = gauges.setdefault(name, GaugeMetricFamily(f"queue_manager_{name}", text, labels=["system"]))
                gauge.add_metric([system.name], number)
    yield from gauges.values()
    if settings().runs_jobs:
        yield _jobs()


def _jobs() -> Metric:
    text = f"Jobs, by state. Counting stops at {COUNTED}."
    jobs = GaugeMetricFamily("queue_manager_jobs", text, labels=["state"])
    with mongodb():
        for state, count in jobs_by_state().items():
            jobs.add_metric([state], count)
    return jobs


def _numbers(system: System) -> dict[str, float]:
    try:
        with mongodb():
            return system.stats().numbers
    except AppError as error:
        log.warning(f"Left out of the metrics: {system.name}: {error}")  # other systems may still answer
        return {}
