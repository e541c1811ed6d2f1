"""What an older service, such as Relay, left in the streams, and whether it still reads, for `queue-manager adopt`.

Guarantee: it only reads; of each stream the number of entries, and the newest 1,000 entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import redis

from queue_manager.core.clock import minutes
from queue_manager.core.wording import many, rounded
from services.message_queue.scripts import Scripts, streams, translate_errors

OWN_CONSUMER = "queue-manager"
"""The consumer of this queue in the group, see `keys.lua`."""
ACTIVE_WITHIN = minutes(1)
MAX_SEARCHED_ENTRIES = 1_000
ENTRIES_PER_SEARCH = 20  # of up to 1 MiB each
SIGNED_DATA = re.compile(rb"\{.*\}\|[0-9a-f]{64}", re.DOTALL)

EFFECTS = (
    f"the group gets the consumer {OWN_CONSUMER}: what it received is in processing for the older service, too",
    "messages received by type are in the stream <QUEUE_NAME>_typed, which the older service does not list",
    "messages that wait in <QUEUE_NAME>_manual return to the streams of their priorities within a minute",
    "only the last 100 acknowledged messages are kept",
)
STEPS = (
    "with QM_MESSAGE_QUEUE=true start web, a worker and beat: both programs may work on the streams at the same time",
    "send the clients of its HTTP API here; QUEUE_REQUIRE_LOCK_TOKEN=false if they acknowledge without a lock token",
    "stop the older service once nobody reads from it; what its consumers hold is requeued at its deadline",
    "set QUEUE_SHARED=false if no other program uses the streams any more",
)


def adoption_notes(scripts: Scripts, levels: int) -> list[str]:
    """Return a line each; none if only this queue uses its streams. Raises QueueUnavailable."""
    with translate_errors():
        return list(_notes(scripts.client, scripts.queue, levels))


def _notes(client: redis.Redis, queue: str, levels: int) -> Iterator[str]:
    titles = dict.fromkeys([*streams(queue, levels), f"{queue}_manual"], "message")
    titles |= {f"{queue}_dlq": "dead letter", f"{queue}_acknowledged": "message", f"{queue}_archived": "message"}
    lengths = {stream: client.xlen(stream) for stream in titles if client.type(stream) == b"stream"}
    pending, consumers = _pending(client, f"{queue}_group", lengths)
    if not consumers.keys() - {OWN_CONSUMER} and sum(lengths.values()) <= client.hlen(f"{queue}_metadata"):
        return
    for stream, length in lengths.items():
        if length:
            held = f", {pending[stream]} of them in processing" if pending[stream] else ""
            yield f"{many(length, titles[stream])} in {stream}{held}"
    for name, idle in consumers.items():
        if name != OWN_CONSUMER:
            is_active = idle < ACTIVE_WITHIN
            yield f"consumer {name} read {rounded(idle)} ago{': it may run until you stop it' if is_active else ''}"
    if signed := sum(_signed(client, stream) for stream in lengths):
        yield (
            f"{many(signed, 'signed message')}, which would be dead-lettered, because only their producer knows the "
            "secret: switch ENABLE_ENCRYPTION off and let the older service consume them first"
        )


def _pending(client: redis.Redis, group: str, names: dict[str, int]) -> tuple[dict[str, int], dict[str, timedelta]]:
    """Return the number of pending entries by stream, and the time since each consumer of the group read."""
    pending, idle = dict.fromkeys(names, 0), dict[str, timedelta]()
    for stream in names:
        if not any(found["name"] == group.encode() for found in client.xinfo_groups(stream)):
            continue
        for consumer in client.xinfo_consumers(stream, group):
            pending[stream] += consumer["pending"]
            name = consumer["name"].decode("utf-8", "replace")
            idle[name] = min(idle.get(name, timedelta.max), timedelta(milliseconds=consumer["idle"]))
    return pending, idle


def _signed(client: redis.Redis, stream: str) -> int:
    """Return the number of signed entries among the newest."""
    signed, before = 0, "+"
    for _ in range(MAX_SEARCHED_ENTRIES // ENTRIES_PER_SEARCH):
        entries: Any = client.xrevrange(stream, max=before, count=ENTRIES_PER_SEARCH)
        signed += sum(SIGNED_DATA.fullmatch(fields.get(b"data", b"")) is not None for _, fields in entries)
        if len(entries) < ENTRIES_PER_SEARCH:
            break
        before = f"({entries[-1][0].decode()}"
    return signed
