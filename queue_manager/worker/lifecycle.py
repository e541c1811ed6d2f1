"""Start-up and end of a Celery process: logging, checks of its servers, renewal of leases, worker heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from logging import WARNING, LogRecord, getLevelNamesMapping, getLogger
from typing import Any

from billiard.util import get_pdeathsig
from celery import signals
from celery.apps.worker import Worker
from celery.utils.nodenames import node_format

from beat_schedule import systems, warnings
from models import database
from queue_manager.broker import start_check
from queue_manager.core import log as logging
from queue_manager.core import process
from queue_manager.core.clock import MAX_CLOCK_SKEW
from queue_manager.core.errors import ConfigurationError, ScanFailed, reason
from queue_manager.core.imports import require_extras
from queue_manager.core.server_check import require_server, until_reachable
from queue_manager.core.settings import settings
from queue_manager.telemetry import error_reports, tracing, worker_heartbeats
from queue_manager.worker.activity import Sampler
from queue_manager.worker.database_pause import pings
from queue_manager.worker.heartbeat import Heartbeat
from services import job_queues, message_queue
from services.due_work import DueWork
from tasks.app import app
from tasks.item import ItemTask
from tasks.systems import require_tasks

log = logging.get_logger("QM/start")
_heartbeat = Heartbeat()
_sampler = Sampler()


@signals.setup_logging.connect
def set_up_logging(loglevel: int, logfile: str | None = None, **options: Any) -> None:
    """Log in our format, and let functions of the product add their handlers."""
    configure_logging(loglevel, logfile)
    # Celery does not send it if `setup_logging` has a receiver.
    rest = {name: options.get(name) for name in ("format", "colorize")}
    root = getLogger()
    signals.after_setup_logger.send(sender=None, logger=root, loglevel=root.level, logfile=logfile, **rest)


def configure_logging(loglevel: int, logfile: str | None) -> None:
    """Log in our format. `--loglevel` can only lower the level; Celery's default (WARNING) would hide normal work."""
    level = min(getLevelNamesMapping()[settings().qm_log_level], loglevel)
    logging.configure(level=level, form=settings().qm_log_format, file=logfile)
    getLogger("celery.app.trace").addFilter(_is_not_repeated)
    getLogger("py.warnings").addFilter(_is_not_advice)


def _is_not_repeated(record: LogRecord) -> bool:
    """Return False for Celery's line about a failed scan: each of its errors is logged already."""
    args = record.args
    return not (isinstance(args, dict) and str(args.get("exc", "")).startswith(f"{ScanFailed.__name__}("))


def _is_not_advice(record: LogRecord) -> bool:
    """Return False for Celery's seven lines at each lost connection, which recommend a setting."""
    return "worker_cancel_long_running_tasks_on_connection_loss" not in record.getMessage()


@signals.worker_init.connect
def check_worker(sender: Any, **_: Any) -> None:
    if isinstance(sender, Worker):  # not embedded in a program
        process.end_at_sigterm()  # while it waits for a server: Celery sets its handler later
    with _ending_the_process():
        file = sender.logfile and node_format(sender.logfile, sender.hostname)
        configure_logging(WARNING, file)  # Celery does it only after this
        _log_warnings()
        require_tasks()
        require_extras()
        _refuse_wrong_servers(with_mongo=True)
        if settings().runs_jobs:
            job_queues.registry.load()
        require_work()
        prepare_to_fork()


def prepare_to_fork() -> None:
    """Freeze the objects of this process, so that its children share them."""
    with suppress(OSError):  # another system than Linux
        get_pdeathsig()  # with cffi it imports a parser of C, as otherwise each child would
    process.reduce_garbage_collection()


@signals.task_revoked.connect
def warn_of_expired(request: Any, expired: bool, **_: Any) -> None:
    """Warn of a message that was discarded because it expired. `request` is the task's context, which has no name."""
    if expired:
        log.warning(
            "A message expired before a worker took it, and was discarded. Its sender set the expiry, and this "
            "machine's clock decides: compare the two clocks if it happens often",
            task=request.task,
            expires=str(request.expires),
        )


@signals.beat_init.connect
def check_beat(**_: Any) -> None:
    with _ending_the_process():
        _log_warnings()
        require_extras()
        _refuse_wrong_servers(with_mongo=False)


@signals.worker_process_init.connect
def settle(**_: Any) -> None:
    process.reduce_garbage_collection(threshold=process.POOL_GC_THRESHOLD)


@signals.worker_process_shutdown.connect
@signals.worker_shutdown.connect  # of a pool of threads, whose tasks run in the main process
def flush_telemetry(**_: Any) -> None:
    error_reports.flush()
    tracing.flush()


@signals.worker_ready.connect
def start_heartbeat(sender: Any, **_: Any) -> None:
    process.reduce_garbage_collection()
    _heartbeat.start()
    _sampler.watch(sender.pool)
    _record(sender.hostname)


@signals.heartbeat_sent.connect
def record_heartbeat(sender: Any, **_: Any) -> None:
    """Record the heartbeat from the main loop, so that a worker that hangs stops recording.

    Celery sends this signal without `-E`, too.
    """
    _record(sender.eventer.hostname)


def _record(name: str) -> None:
    queues = app.amqp.queues.consume_from
    worker_heartbeats.record(name, queues, paused=pings.problem, activity=_sampler.sample())


@signals.worker_shutdown.connect
def stop_heartbeat(sender: Any, **_: Any) -> None:
    _heartbeat.stop()
    pings.stop()
    worker_heartbeats.remove(sender.hostname)


@contextmanager
def _ending_the_process() -> Iterator[None]:
    """End the process with exit code 1 on any error. Celery would log it, and start without the checks."""
    try:
        yield
    except ConfigurationError as error:
        log.error(str(error))
        raise SystemExit(1) from None
    except Exception as error:
        log.error(f"A check at the start failed, so this process ends ({type(error).__name__}: {reason(error)})")
        log.debug("The error of the check", exc_info=True)
        raise SystemExit(1) from None


def _compare_clocks() -> None:
    """Warn if this machine's clock differs from the database server's."""
    ahead = datetime.now(UTC) - database.server_now()
    if abs(ahead) > MAX_CLOCK_SKEW:
        log.warning(
            f"This machine's clock differs from the database server's by {ahead.total_seconds():+.1f} s: "
            "synchronize both with NTP"
        )


def _log_warnings() -> None:
    for warning in warnings():
        log.warning(warning)


def _refuse_wrong_servers(*, with_mongo: bool) -> None:
    url, broker_url = settings().redis_url, settings().broker
    checks: list[tuple[str, str, Callable[[], object]]] = [("Redis", url, partial(require_server, url))]
    if broker_url != url:
        checks.append(("The broker", broker_url, partial(start_check.require_broker, app, broker_url)))
    if settings().qm_message_queue:
        queue_url = message_queue.server_url()
        checks.append(("Redis", queue_url, partial(require_server, queue_url)))
    if with_mongo:
        checks.append(("MongoDB", settings().mongo_db_url, _check_mongodb))
    try:
        for server, url, check in checks:
            until_reachable(check, server=server, url=url, log=log)
    finally:
        database.close()  # the pool forks next: each child opens its own


def _check_mongodb() -> None:
    database.require_replica_set()
    _compare_clocks()


def require_work() -> None:
    """Make the work of each item task, which Celery's consumers would make without naming the system.

    Raises:
        ConfigurationError: the function `work` of an item task raises an error, or returns something else.
    """
    for system in systems():
        task = app.tasks.get(system.item_task)
        if not isinstance(task, ItemTask) or not system.is_on(settings()):
            continue
        if not isinstance(work := system.call("work", task.work), DueWork):
            raise ConfigurationError(f"System {system.name!r}: `work` returned {work!r:.100}, not DueWork")
