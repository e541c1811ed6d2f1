"""`/metrics` for Prometheus, read from Redis, MongoDB and the broker at each scrape.

Guarantee: the status is always 200. Metrics of a server that does not answer are left out, and `queue_manager_up`
reports it. Totals cover all processes, since Redis last lost its data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from anyio import from_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from redis import Redis, ResponseError

from beat_schedule import systems
from models.due_documents import MAX_COUNT
from queue_manager.beat.leader_lock import LEADER_LOCK, epoch_key
from queue_manager.beat.status import leadership
from queue_manager.broker import backlog
from queue_manager.broker.keys import DEFAULT_QUEUE
from queue_manager.core.clock import milliseconds
from queue_manager.core.errors import Unavailable, reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.health.problems import all_problems
from queue_manager.health_rules import Problem
from queue_manager.server_calls import broker, mongodb, ping_mongodb, redis_server
from queue_manager.system import SCANS_QUEUE, SystemStats, item_queues, sources
from queue_manager.telemetry import counters, latency, worker_heartbeats
from queue_manager.telemetry.counters import Totals
from queue_manager.telemetry.latency import Measure
from queue_manager.web.auth.authorization import viewer
from queue_manager.web.routes.systems.events import overview_states
from services.job_queues import jobs_by_state

SCAN_TOTALS = {
    "runs": "Runs of the scan.",
    "found": "Due items that the scan found.",
    "claimed": "Items whose lease the scan took.",
    "enqueued": "Items whose task the scan published.",
    "errors": "Errors in scans.",
}
DURATIONS: dict[Measure, str] = {
    "due_to_done": "Time from the due time to the result, of items that were done.",
    "wait": "Time from the due time or the dispatch, whichever is later, to the start, of items that were done; "
    "for the message queue, to the first delivery of all messages.",
    "run": "Time from the start to the result, of items that were done; an item takes as long as its batch.",
}
STATISTICS = {
    "acknowledged_total": "Messages that consumers acknowledged, or that operators moved to the acknowledged ones.",
    "cooling_off": "Items that failed and wait for their next attempt.",
    "created_last_day": "Review requests that were created in the last 24 hours.",
    "dead": "Dead letters of the message queue.",
    "dead_lettered_total": "Messages whose ack deadline passed at the last attempt, so that they became dead letters.",
    "due": "Sites that the next scan dispatches.",
    "executing": "Jobs that are executing.",
    "failed": f"Jobs whose most recent attempt failed (counting stops at {MAX_COUNT}); for sites, resets that failed "
    "in the last 24 hours.",
    "in_progress": "Items in flight; for the message queue, messages that a consumer has received.",
    "lag_seconds": "Time for which the oldest item that has not failed has been due; for jobs, only of names that no "
    "worker runs; for messages, since the first ack deadline passed.",
    "malformed": "Rooms whose snooze is malformed and can never fall due.",
    "open": "Review requests that are open.",
    "other_documents": "Documents of other programs in the collection of the jobs.",
    "overdue": "Messages whose deadline has passed.",
    "paused": "Names of jobs, or types of messages, that operators paused.",
    "pending": "Items that are due, not in flight and not failed; messages that wait; names with a due job that no "
    "worker runs.",
    "pending_calls": "Calls of `after` that have not succeeded for three periods of the scan.",
    "requeued_total": "Messages whose ack deadline passed, so that they were requeued.",
    "resets_last_day": "Resets of sites in the last 24 hours.",
    "stuck": "Items whose lease ended without a result; for sites, those without a thumbnail after five resets.",
    "unreadable": "Subscriptions whose date cannot be read.",
}
"""What each statistic of the built-in systems means; a name that ends in `_total` is a counter."""

log = get_logger("QM/metrics")
router = APIRouter(dependencies=[viewer], tags=["probes"])


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request) -> Response:
    """Return the metrics in the text format of Prometheus."""
    return Response(generate_latest(from_thread.run(collector, request)), media_type=CONTENT_TYPE_LATEST)


async def collector(request: Request) -> SystemsCollector:
    """Return the collector of one scrape, with the statistics and problems that the overview is made from."""
    found = await overview_states(request).readings()
    return SystemsCollector(all_problems(found), found.stats)


class SystemsCollector(Collector):
    """Reads all other metrics at each scrape."""

    def __init__(self, problems: Sequence[Problem], stats: Mapping[str, SystemStats | Problem]) -> None:
        self._problems, self._stats = problems, stats

    def collect(self) -> Iterator[Metric]:
        return distinct(self._metrics())

    def _metrics(self) -> Iterator[Metric]:
        text = "The release of this web process; always 1."
        yield InfoMetricFamily("queue_manager_build", text, value={"version": worker_heartbeats.OWN_RELEASE})
        yield _problem_gauge(self._problems)
        up = GaugeMetricFamily("queue_manager_up", "1 if the server answers, 0 if not.", labels=["server"])
        parts: list[tuple[str, Callable[[], Iterator[Metric]]]] = [
            ("redis", _counts),
            ("redis", _processes),
            ("mongodb", _from_mongodb),
            ("redis" if settings().broker == settings().redis_url else "broker", _from_broker),
        ]
        found: list[Metric] = []
        answers: dict[str, bool] = {}
        for server, read in parts:
            if not answers.get(server, True):
                continue  # each part would wait for it again, and Prometheus gives up after 10 s
            try:
                found += list(read())
            except Unavailable as error:
                log.warning(f"Left out of the metrics: {server}", error=reason(error))
                is_answer = isinstance(error.__cause__, ResponseError)  # such as of a key of another type
            else:
                is_answer = True
            answers[server] = is_answer
        for server, is_up in answers.items():
            up.add_metric([server], is_up)
        yield up
        yield from found
        yield from statistics(self._stats)


def distinct(metrics: Iterable[Metric]) -> Iterator[Metric]:
    """Yield the first metric of each name: a statistic of a user's system may have the name of a built-in metric."""
    names: set[str] = set()
    for metric in metrics:
        if metric.name in names:
            log.warning(f"Left out of the metrics: a second {metric.name}; rename the statistic in `stats`")
        else:
            names.add(metric.name)
            yield metric


def _problem_gauge(problems: Sequence[Problem]) -> Metric:
    gauge = GaugeMetricFamily(
        "queue_manager_problem",
        "1 while a system or component has a problem by this health rule.",
        labels=["system", "rule", "severity"],
    )
    for problem in problems:
        gauge.add_metric([problem.system, problem.rule.id, problem.severity], 1)
    return gauge


def _counts() -> Iterator[Metric]:
    with redis_server() as client:
        scans = {system.name: counters.source(system.scan_task) for system in systems()}
        of_scans = counters.from_each_server(client, scans, counters.totals)
        of_items = counters.from_each_server(client, sources(systems()), counters.totals)
        yield from _scans(of_scans)
        yield _items(of_items)
        yield from _durations(of_items)


def _processes() -> Iterator[Metric]:
    with redis_server() as client:
        yield from _leader(client)
        online = len(worker_heartbeats.online(client))
        yield GaugeMetricFamily("queue_manager_workers", "Workers that are online.", value=online)


def _scans(totals: dict[str, Totals]) -> Iterator[Metric]:
    for field, text in SCAN_TOTALS.items():
        counter = CounterMetricFamily(f"queue_manager_scan_{field}", text, labels=["system"])
        for system, of_system in totals.items():
            counter.add_metric([system], of_system.get(field, 0))
        yield counter
    duration = HistogramMetricFamily("queue_manager_scan_duration_seconds", "Duration of scans.", labels=["system"])
    for system, of_system in totals.items():
        buckets = latency.Histogram.of(of_system, "run").cumulative()
        duration.add_metric([system], buckets=buckets, sum_value=latency.sum_seconds(of_system, "run"))
    yield duration


def _items(totals: dict[str, Totals]) -> Metric:
    items = CounterMetricFamily(
        "queue_manager_items",
        "Attempts at items or jobs, by outcome: done, failed, or retried, which failed and are repeated.",
        labels=["system", "outcome"],
    )
    for system, of_system in totals.items():
        for outcome in counters.OUTCOMES:
            items.add_metric([system, outcome], of_system.get(outcome, 0))
    return items


def _durations(totals: dict[str, Totals]) -> Iterator[Metric]:
    for measure, text in DURATIONS.items():
        durations = HistogramMetricFamily(f"queue_manager_item_{measure}_seconds", text, labels=["system"])
        for system, of_system in totals.items():
            histogram = latency.histograms(of_system)[measure]
            durations.add_metric([system], histogram.cumulative(), sum_value=latency.sum_seconds(of_system, measure))
        yield durations
    yield _on_time(totals)


def _on_time(totals: dict[str, Totals]) -> Metric:
    text = (
        "Items that were done, by whether that was within the time that their system declares; for the message queue, "
        "all messages that were delivered."
    )
    items = CounterMetricFamily("queue_manager_items_timed", text, labels=["system", "on_time"])
    for system in systems():
        if system.name in totals:
            histogram = latency.histograms(totals[system.name])[system.on_time_of]
            punctual = histogram.count_within(milliseconds(system.on_time_within))
            items.add_metric([system.name, "yes"], punctual)
            items.add_metric([system.name, "no"], histogram.total - punctual)
    return items


def _from_broker() -> Iterator[Metric]:
    queues = (DEFAULT_QUEUE, SCANS_QUEUE, *item_queues(systems()))
    waiting = GaugeMetricFamily(
        "queue_manager_queue_messages", "Messages that wait in the Celery queue.", labels=["queue"]
    )
    with broker() as connection:
        for queue in queues:
            waiting.add_metric([queue], backlog.length_on(connection, queue))
        counts = backlog.held_and_dead_on(connection)
    yield waiting
    if counts is not None:
        held, dead = counts
        yield GaugeMetricFamily(
            "queue_manager_unacked_messages", "Messages that workers have received and not acknowledged.", value=held
        )
        yield GaugeMetricFamily("queue_manager_dead_letters", "Dead letters of the broker.", value=dead)


def _leader(client: Redis) -> Iterator[Metric]:
    leads = leadership(client) is not None
    epoch = int(client.get(epoch_key(LEADER_LOCK)) or 0)
    yield GaugeMetricFamily("queue_manager_leader", "1 if a beat is the leader, 0 if not.", value=leads)
    yield GaugeMetricFamily(
        "queue_manager_leader_epoch", "Epoch of the leader, which rises by one with each takeover.", value=epoch
    )


def _from_mongodb() -> Iterator[Metric]:
    ping_mongodb()  # also without job queues, to see whether it answers
    if settings().runs_jobs:
        yield _jobs()


def statistics(stats: Mapping[str, SystemStats | Problem]) -> Iterable[Metric]:
    """Return one metric per statistic, with a value for each system whose statistics could be read.

    The others have the problem `unknown-state`, so they are not logged at each scrape.
    """
    found: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for system, read in stats.items():
        if isinstance(read, Problem):
            continue
        for name, number in read.numbers.items():
            found.setdefault(name, _statistic(name)).add_metric([system], number)
    return found.values()


def _statistic(name: str) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    text = STATISTICS.get(name, f"Statistic {name} of the system, as `queue-manager health` shows it.")
    return kind(f"queue_manager_{name}", text, labels=["system"])


def _jobs() -> Metric:
    text = f"Jobs, by state. Counting stops at {MAX_COUNT}."
    jobs = GaugeMetricFamily("queue_manager_jobs", text, labels=["state"])
    with mongodb():
        for state, count in jobs_by_state().items():
            jobs.add_metric([state], count)
    return jobs
