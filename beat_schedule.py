"""What fires when: the whole schedule.

A scan fires while its flag is on. Missed or doubled ticks change nothing in the end: a scan asks what is due now.
"""

from __future__ import annotations

from queue_manager.core.clock import seconds
from queue_manager.core.schedule import Scan

SCHEDULE = (
    Scan(
        name="support-snooze",
        task="tasks.support_snooze.scan_expired_snoozes",
        queue="support-snooze",
        flag=lambda chosen: chosen.qm_conversations,
        period=lambda chosen: seconds(chosen.qm_snooze_scan_seconds),
    ),
)
