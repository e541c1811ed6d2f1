"""The type of each key in Redis, as `docs/reference/data.md` lists them, to find those that another program wrote.

Keys whose names contain a time, a message type or a job's name are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import redis

from beat_schedule import systems
from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.beat.status import SCHEDULE_KEY
from queue_manager.broker import keys
from queue_manager.broker.dead_letters import DEAD_LETTERS
from queue_manager.core.settings import settings
from queue_manager.leases import Leases
from queue_manager.pauses import PAUSES_KEY
from queue_manager.system import SCANS_QUEUE, item_queues
from queue_manager.telemetry import worker_heartbeats
from queue_manager.telemetry.counters import source
from services import message_queue
from services.due_documents.after import AFTER

_TYPE_NAMES = {"zset": "sorted set"}
_OF_SERVER = {
    PAUSES_KEY: "hash",
    LEADER_LOCK: "hash",
    "redbeat::lock:epoch": "string",
    SCHEDULE_KEY: "zset",
    f"{keys.SCHEDULE_PREFIX}:statics": "set",
    worker_heartbeats.WORKERS_KEY: "zset",
    worker_heartbeats.DETAILS_KEY: "hash",
    worker_heartbeats.ACTIVITY_KEY: "hash",
    "qm:history:copied": "string",
    "qm:events:server": "string",
    "qm:readiness": "string",
    "qm:revoked-sessions": "zset",
}
_OF_BROKER = {
    keys.UNACKED: "hash",
    keys.UNACKED_INDEX: "zset",
    keys.TRANSPORT_OPTIONS["unacked_mutex_key"]: "string",
    DEAD_LETTERS: "list",
}
_OF_MESSAGE_QUEUE = {
    **dict.fromkeys(["", "_typed", "_manual", "_dlq", "_acknowledged", "_archived", ":events", ":resumes"], "stream"),
    **dict.fromkeys(["_metadata", ":pauses", ":adopted", ":healed_until", ":folded:kept", ":totals"], "hash"),
    **dict.fromkeys([":types", ":next_sweep", ":healed", ":forget_cursor", ":folded"], "string"),
    **{f":stats:total_{name}": "string" for name in ("acknowledged", "requeued", "dead_lettered")},
    ":deadlines": "zset",
    ":pending_ids": "set",
}


def types() -> Mapping[str, Mapping[str, str]]:
    """Return the keys of each server, by its URL, with their types."""
    chosen = settings()
    found: dict[str, dict[str, str]] = defaultdict(dict)
    found[chosen.redis_url] |= _OF_SERVER
    for system in systems():
        found[chosen.redis_url] |= {
            f"{keys.SCHEDULE_PREFIX}{system.name}": "hash",
            f"qm:scan-ticks:{system.name}": "hash",
            **{source(name).totals: "hash" for name in (system.scan_task, system.queue) if name is not None},
            **_of_leases(system.name),
            **_of_leases(f"{system.name}{AFTER}"),
        }
    if (broker := chosen.broker_redis_url) is not None:
        queues = [keys.DEFAULT_QUEUE, SCANS_QUEUE, *item_queues(systems())]
        found[broker] |= {keys.list_of(queue, priority): "list" for queue in queues for priority in keys.PRIORITIES}
        found[broker] |= _OF_BROKER
    if chosen.qm_message_queue:
        streams = {f"_p{priority}": "stream" for priority in range(1, chosen.max_priority_levels)}
        of_queue = {f"{chosen.queue_name}{ending}": kind for ending, kind in (_OF_MESSAGE_QUEUE | streams).items()}
        found[message_queue.server_url()] |= of_queue
    return found


def _of_leases(name: str) -> dict[str, str]:
    sets = Leases(name).keys
    return {key: "hash" if key == sets.losses else "zset" for key in sets} | {
        f"qm:lease:{name}:scan": "string",
        f"qm:lease:{name}:slot": "string",
    }


def of_other_types(client: redis.Redis, types: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with each key of another type. `client` must decode its replies."""
    with client.pipeline(transaction=False) as pipe:
        for key in types:
            pipe.type(key)
        found = pipe.execute()
    for (key, wanted), kind in zip(types.items(), found, strict=True):
        if kind not in (wanted, "none"):
            yield f"{key} is a {type_name(kind)}, and must be a {type_name(wanted)}"


def type_name(kind: str) -> str:
    """Return the name of a type in documents."""
    return _TYPE_NAMES.get(kind, kind)
