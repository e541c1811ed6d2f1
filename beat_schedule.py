"""What fires when: the whole schedule.

A line fires while its flag is on. Missed or doubled ticks change nothing in the end: a scan asks what is due now.
"""

from __future__ import annotations

from queue_manager.core.schedule import Every

SCHEDULE = (
    Every(
        name="support-snooze",
        task="tasks.support_snooze.scan_expired_snoozes",
        period="qm_snooze_scan_seconds",
        flag="qm_conversations",
    ),
)
