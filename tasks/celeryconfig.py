"""Celery's settings, each with its reason. Read lazily: importing `tasks` needs no environment.

Every public name of this module is a setting, which `celery report`, `inspect conf` and Flower show. They mask
passwords only in `broker_url` and under names such as `password`.
"""

import os as _os
from typing import Any as _Any

from kombu import Queue as _Queue

from beat_schedule import systems as _systems_of_settings
from queue_manager.beat.leader_lock import LEADER_LOCK as _LEADER_LOCK
from queue_manager.broker.keys import DEFAULT_QUEUE as _DEFAULT_QUEUE
from queue_manager.broker.keys import SCHEDULE_PREFIX as _SCHEDULE_PREFIX
from queue_manager.broker.options import kombu_url as _kombu_url
from queue_manager.broker.options import register_transport as _register_transport
from queue_manager.broker.options import tls_options as _tls_options
from queue_manager.broker.options import transport_options as _transport_options
from queue_manager.core.redis_client import client_options as _client_options
from queue_manager.core.redis_url import public_url as _public_url
from queue_manager.core.settings import settings as _read_settings
from queue_manager.system import SCANS_QUEUE as _SCANS_QUEUE
from queue_manager.system import item_queues as _item_queues
from queue_manager.system import task_modules as _task_modules
from tasks.app import app as _app
from tasks.app import usage_errors as _usage_errors
from tasks.systems import beat_entries as _beat_entries

with _usage_errors():
    _settings = _read_settings()


def _queue_of(
    name: str, args: _Any, kwargs: _Any, options: _Any, task: _Any = None, **_: _Any
) -> dict[str, str] | None:
    """Route a task to the queue that its decorator names; Celery's own attribute `queue` is going away.

    A map, a starmap and the chunks of a task, which are tasks of Celery, go to the queue of that task.
    """
    mapped = kwargs.get("task") if getattr(task, "name", None) in ("celery.map", "celery.starmap") else None
    queue = getattr(_app.tasks.get(mapped["task"] if isinstance(mapped, dict) else name), "queue_name", None)
    return None if queue is None else {"queue": queue}


# Broker: the stock URL, which Flower and other tools read, with the transport whose workers survive a lost server.
broker_url = _kombu_url(_settings)
if _os.environ.get("CELERY_BROKER_URL") == _settings.broker_url:  # Celery's command line copied BROKER_URL
    _os.environ.pop("CELERY_BROKER_URL", None)
broker_transport = _register_transport(broker_url) if _settings.has_batched_broker else None
broker_use_ssl = _tls_options(_settings.broker)
broker_transport_options = _transport_options(_settings)
broker_connection_retry_on_startup = True
broker_connection_max_retries = None  # no limit: a broker that is unavailable comes back
broker_pool_acquire_timeout = 10

# Messages are JSON, and acknowledged when the work is done. The items of a lost process are dispatched again by their
# leases. Requeuing their messages instead would never end if an item itself kills its workers.
accept_content = ["json"]
task_serializer = "json"
result_serializer = "json"
task_acks_late = True
task_reject_on_worker_lost = False
task_ignore_result = True
if not _os.environ.get("CELERY_RESULT_BACKEND"):
    result_expires = None  # so that beat does not schedule the deletion of results
task_default_queue = _DEFAULT_QUEUE
task_routes = [_queue_of]

if _settings.has_batched_broker:
    worker_consumer = "queue_manager.broker.consumer:Consumer"  # dead-letters a refused message with the reason
worker_concurrency = _settings.worker_concurrency
# For large batches. Of each queue of tasks that are executed one by one, the batched broker reserves four per process.
worker_prefetch_multiplier = 1_500 if _settings.has_batched_broker and _settings.qm_batching else 4
worker_lost_wait = 1  # seconds for the result of a process that died, before its items are executed again
worker_hijack_root_logger = False
worker_soft_shutdown_timeout = 20

# Beat: one leads, any number stand by; failover within lock time + loop interval.
beat_scheduler = "queue_manager.beat.scheduler:LeaderScheduler"
beat_max_loop_interval = 1
beat_enable_remote_control = True
beat_remote_control_max_tick_age = 30
redbeat_redis_url = _public_url(_settings.redis_url)
redbeat_redis_options = _client_options(_settings.redis_url)  # with the credentials: a `password` is masked here
redbeat_key_prefix = _SCHEDULE_PREFIX
redbeat_lock_key = _LEADER_LOCK
redbeat_lock_timeout = _settings.jobs_takeover_seconds

timezone = "UTC"

# The settings that systems declare. Last, because this imports the modules of QM_SYSTEMS, and a task that such a module
# uses during its import reads the settings above.
with _usage_errors():
    _systems = _systems_of_settings()
    beat_schedule = _beat_entries(_systems, _settings)
task_queues = [_Queue(name, routing_key=name) for name in (_DEFAULT_QUEUE, _SCANS_QUEUE, *_item_queues(_systems))]
imports = [*_settings.qm_systems, *_task_modules(_systems)]
