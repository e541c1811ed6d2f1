"""Documents in Queue Manager's own collections that another program has made malformed.

Not those of jobs, which fail with this reason, nor those that are replaced: marks of scans, the leader, counts of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from models import alert, audit, failed_item, history, item_events, job_queue, mark, outbox, scan_run, site
from models.database import Document
from models.malformed import malformed_ids
from queue_manager.core.wording import first_ids, many
from queue_manager.doctor.findings import Finding, Findings
from services import stale_thumbnails

_COLLECTION_READERS: Mapping[str, Callable[[Document], object]] = {
    job_queue.QUEUES_COLLECTION: job_queue.read_pause,
    outbox.OUTBOX_COLLECTION: outbox.read_pending,
    failed_item.FAILED_ITEMS_COLLECTION: failed_item.read_failure,
    alert.ALERTS_COLLECTION: alert.read_sent,
    alert.SILENCES_COLLECTION: alert.read_silence,
    audit.AUDIT_COLLECTION: audit.read_entry,
    scan_run.RUNS_COLLECTION: scan_run.read_run,
    history.HISTORY_COLLECTION: history.read_bucket,
    mark.MARKS_COLLECTION: lambda one: one["_id"] == mark.LAST_SEEN or mark.read_mark(one),
    site.RESETS_COLLECTION: stale_thumbnails.read_failed,
    item_events.ITEM_EVENTS_COLLECTION: item_events.read_event,
}


def malformed() -> Iterator[Findings]:
    """Yield the collections with malformed documents."""
    for name, read in _COLLECTION_READERS.items():
        if ids := malformed_ids(name, read):
            yield Finding(
                f"{many(len(ids), 'malformed document')} in {name}: {first_ids(ids, len(ids))}",
                "Another program wrote them: correct or delete them.",
            )
