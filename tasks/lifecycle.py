"""What a Celery process does when it starts and stops: log, checks of its servers, leases, presence."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from celery import signals

from models import database
from queue_manager.core import log as logging
from queue_manager.core import memory
from queue_manager.core.clock import seconds
from queue_manager.core.connect import until_reachable
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import settings
from queue_manager.transport import presence, server
from services import job_queues, message_queue
from tasks.heartbeat import Heartbeat

log = logging.get_logger("QM/start")
_heartbeat = Heartbeat()
TOLERATED_SKEW = seconds(2)


@signals.setup_logging.connect
def configure_logging(loglevel: int, **_: Any) -> None:
    """Log in our form. `--loglevel` can only make it say more: Celery's own default would hide the work."""
    chosen = logging.level_number(settings().qm_log_level)
    logging.configure(level=min(chosen, loglevel), form=settings().qm_log_format)


@signals.worker_init.connect
def check_worker(**_: Any) -> None:
    configure_logging(logging.level_number("WARNING"))  # Celery does it only after this
    _say_remarks()
    _refuse_wrong_servers(with_mongo=True)
    _refuse_missing_jobs()


@signals.task_revoked.connect
def say_expired(request: Any, expired: bool, **_: Any) -> None:
    """Say loudly that a scan was thrown away unread: if each one is, two clocks differ and nothing is ever done."""
    if expired:
        log.warning(
            "A message expired before it was taken. Now and then that is a busy worker; if it is every one, this "
            "machine's clock runs ahead of the beat's",
            task=request.name,
            expires=str(request.expires),
        )


@signals.beat_init.connect
def check_beat(**_: Any) -> None:
    _say_remarks()
    _refuse_wrong_servers(with_mongo=False)


@signals.worker_process_init.connect
def settle(**_: Any) -> None:
    memory.collect_seldom()


@signals.worker_ready.connect
def start_heartbeat(sender: Any, **_: Any) -> None:
    memory.collect_seldom()
    _heartbeat.start()
    presence.show(sender.hostname, sender.app.amqp.queues.consume_from)


@signals.heartbeat_sent.connect
def show_presence(sender: Any, **_: Any) -> None:
    """Show that this worker is there: from its main loop, so that one that hangs is not. It comes also without -E."""
    presence.show(sender.eventer.hostname, sender.eventer.app.amqp.queues.consume_from)


@signals.worker_shutdown.connect
def stop_heartbeat(sender: Any, **_: Any) -> None:
    _heartbeat.stop()
    presence.leave(sender.hostname)


def _compare_clocks() -> None:
    """Warn of a clock that differs from the database's, by which everything is judged."""
    ahead = datetime.now(UTC) - database.server_now()
    if abs(ahead) > TOLERATED_SKEW:
        log.warning(f"This machine's clock is {ahead.total_seconds():+.1f} s off the database's: set both by NTP")


def _say_remarks() -> None:
    for remark in settings().remarks():
        log.warning(remark)


def _refuse_wrong_servers(*, with_mongo: bool) -> None:
    mongo_url = settings().mongo_db_url
    try:
        _check_redis(server.require_server, settings().redis_url)
        if settings().qm_message_queue:
            _check_redis(server.require_server, message_queue.server_url())
        if with_mongo:
            until_reachable(
                database.require_replica_set, server="MongoDB", url=mongo_url, errors=database.OUTAGES, log=log
            )
            _compare_clocks()
    except ConfigurationError as error:
        log.error(str(error))
        raise SystemExit(1) from None
    finally:
        database.close()  # the pool forks next: each child opens its own


def _check_redis(check: Callable[[str], None], url: str) -> None:
    until_reachable(partial(check, url), server="Redis", url=url, errors=server.OUTAGES, log=log)


def _refuse_missing_jobs() -> None:
    try:
        if settings().runs_jobs:
            job_queues.registry.load()
    except ConfigurationError as error:
        log.error(str(error))
        raise SystemExit(1) from None
