"""The health rules: the table behind `queue-manager health`, the overview, `/readyz?deep`, the metrics and alerts.

`docs/reference/health.md` shows this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal, Self

from pydantic import BaseModel, Field, computed_field

from queue_manager.core.clock import MAX_CLOCK_SKEW, seconds
from queue_manager.leases import OFTEN_LOST

MISSED_RUNS = 3
MIN_LATE_AFTER = seconds(15)  # a short delay on a busy machine is not a problem, even if the period is shorter
MANY_RESETS = 5
WORKER_START_TIME = seconds(30)  # after a beat became the leader, workers may still be starting

DOCUMENTS, ANY_SYSTEM = "systems of `DueDocuments`", "every system that is on"
UNLESS_IDLE = True
LATE = f"{MISSED_RUNS} periods of the scan (at least {MIN_LATE_AFTER.total_seconds():.0f} s)"

Severity = Literal["critical", "warning"]

CRITICAL: Severity = "critical"
"""Due work is not done, or may be lost, until somebody acts. A state that cannot be read may be one of these."""
WARNING: Severity = "warning"
"""Work continues, or is retried automatically, but somebody should look at the cause."""


class Rule(StrEnum):
    """What is wrong."""

    def __new__(cls, id: str, *_: object) -> Self:
        self = str.__new__(cls, id)
        self._value_ = id
        return self

    def __init__(
        self,
        id: str,
        severity: Severity,
        scope: str,
        condition: str,
        action: str,
        state: str | None = None,
        unless_idle: bool = False,
    ) -> None:
        """Define a rule.

        Args:
            scope: the systems or the component that it applies to. No rule applies to a system that is off.
            condition: when it is a problem, with the threshold.
            action: what to do.
            state: the state in which the system's page lists the items.
            unless_idle: it does not apply to a system that is paused or in a dry run, whose work waits as intended.
        """
        self.id = id
        self.severity = severity
        self.scope = f"{scope}, unless paused or in a dry run" if unless_idle else scope
        self.condition = condition
        self.action = action
        self.state = state
        self.unless_idle = unless_idle

    LAG = (
        "lag",
        WARNING,
        f"{ANY_SYSTEM} except `review-requests`",
        f"The oldest due item that has not failed has waited longer than {LATE}.",
        "See `queue-manager why ID` (`jobs status` for jobs). Check that the workers run, keep up and log no errors.",
        "late",
        UNLESS_IDLE,
    )
    STUCK_ITEMS = (
        "stuck-items",
        WARNING,
        f"{DOCUMENTS}, `job-queues`",
        f"An item is still due, and the lease of its worker ended more than {LATE} ago.",
        "Check the workers and their logs.",
        "stuck",
        UNLESS_IDLE,
    )
    FAILED_ITEMS = (
        "failed-items",
        WARNING,
        f"{DOCUMENTS}, `job-queues`, `stale-thumbnails`",
        "Every attempt at an item failed, and it is still due.",
        "See the error on the system's page or in the workers' logs, correct the cause, then retry.",
        "failed",
    )
    FAILING_CALLS = (
        "failing-calls",
        WARNING,
        f"{DOCUMENTS} with `after`",
        f"A call of `after` has not succeeded for more than {LATE}, although its documents are written.",
        "See the error in the workers' logs and correct the cause; the call is repeated.",
        None,
        UNLESS_IDLE,
    )
    LOST_ITEMS = (
        "lost-items",
        WARNING,
        "every system with item tasks",
        f"The process of an item died or hung at least {OFTEN_LOST} times in a row, the last time within a day.",
        "See the workers' logs, then repair or remove the item.",
    )
    REPEATED_RESETS = (
        "repeated-resets",
        WARNING,
        "`stale-thumbnails`",
        f"A site was reset at least {MANY_RESETS} times in a row, and has no thumbnail yet.",
        "Check the thumbnail builder.",
        "stuck",
    )
    FAILING_JOBS = (
        "failing-jobs",
        WARNING,
        "`job-queues`",
        "The most recent attempt at a job failed.",
        "See `queue-manager jobs list --state failure` and correct the cause. Jobs with a `PermanentError` are not "
        "retried by themselves: `queue-manager jobs retry ID` them, or cancel them.",
        "failure",
    )
    LOST_JOBS = (
        "lost-jobs",
        CRITICAL,
        "`job-queues`",
        f"The lease of an executing job ended more than {LATE} ago.",
        "Check that `celery -A tasks beat` is running and that a worker consumes the queue `scans`.",
        "executing",
    )
    UNADOPTED_JOBS = (
        "unadopted-jobs",
        CRITICAL,
        "`job-queues`",
        "Another program stored a document in `jobs_data` that is neither `success` nor `canceled`.",
        "Run `queue-manager adopt jobs`, and remove the documents that it cannot adopt.",
    )
    DEAD_MESSAGES = (
        "dead-messages",
        CRITICAL,
        "`overdue-messages`",
        "The message queue has dead letters.",
        "See `queue-manager queue list dead`, then replay or delete them.",
        "dead",
    )
    DEAD_LETTERS = (
        "dead-letters",
        CRITICAL,
        "`broker`",
        "The broker has dead letters.",
        "See `queue-manager dead-letters`, then replay or delete them.",
    )
    UNREADABLE_DOCUMENTS = (
        "unreadable-documents",
        CRITICAL,
        "`support-snooze`, `review-requests`",
        "A document has a date that cannot be read.",
        "Correct the date, or remove the document.",
    )
    LATE_SCAN = (
        "late-scan",
        CRITICAL,
        ANY_SYSTEM,
        f"The scan has not run for {LATE}, and it is not starting.",
        "Check that `celery -A tasks beat` is running, that a worker consumes the queue `scans`, and that long jobs do "
        "not occupy all of its processes (`queue-manager workers`).",
    )
    SCAN_ERRORS = (
        "scan-errors",
        WARNING,
        ANY_SYSTEM,
        "The last scan had errors.",
        "See the error in the log of the workers that consume the queue `scans`.",
    )
    MISSING_INDEXES = (
        "missing-indexes",
        CRITICAL,
        f"{ANY_SYSTEM}, `mongodb`",
        "An index does not exist.",
        "Run `queue-manager migrate` with the same settings.",
    )
    UNKNOWN_STATE = (
        "unknown-state",
        CRITICAL,
        ANY_SYSTEM,
        "Its `stats`, `collections` or `counts` could not be read, although MongoDB answers and no index is missing.",
        "Correct the setting or the function, or check the server, that the problem names.",
    )
    NO_LEADER = (
        "no-leader",
        CRITICAL,
        "`beat`",
        "No beat is the leader, so no scans run.",
        "Start `celery -A tasks beat`.",
    )
    OLD_LEADER = (
        "old-leader",
        WARNING,
        "`beat`",
        "A beat of release 0.1 leads, and newer ones stand by.",
        "Stop it once no worker of that release is left.",
    )
    NO_WORKERS = (
        "no-workers",
        CRITICAL,
        "`workers`",
        f"No worker is online, and no beat began to lead within the last {WORKER_START_TIME.total_seconds():.0f} s.",
        "Start `celery -A tasks worker`.",
    )
    PAUSED_WORKERS = (
        "paused-workers",
        WARNING,
        "`workers`",
        "A worker is online and takes no items, because it cannot reach MongoDB.",
        "Check the network between the worker and MongoDB. The worker resumes by itself.",
    )
    QUEUE_WITHOUT_WORKER = (
        "queue-without-worker",
        CRITICAL,
        "`workers`, every system with item tasks",
        "Workers are online, but none consumes the queue `scans`, or the queue of the system.",
        "If its system was switched on after the workers had started, restart them; otherwise start "
        "`celery -A tasks worker --queues QUEUE` with the name of the queue.",
    )
    SERVER_AWAY = (
        "server-away",
        CRITICAL,
        "`mongodb`, `redis`, `broker`",
        "The server does not answer in time.",
        "Check that the server runs and can be reached from here.",
    )
    SERVER_UNSUITABLE = (
        "server-unsuitable",
        CRITICAL,
        "`mongodb`, `redis`, `broker`",
        "The server refuses the credentials or a command, is too old, or could lose data.",
        "Correct its configuration, the privileges of its user, or the setting that names it.",
    )
    REFUSED_WRITES = (
        "refused-writes",
        CRITICAL,
        "`mongodb`, `redis`, `broker`; `overdue-messages`, if `QM_QUEUE_REDIS_URL` is another server",
        "The server answers, but refuses or does not confirm writes: its memory or disk is full, it is a replica or "
        "locked, or MongoDB has no majority of its members.",
        "Correct the cause that the problem names: free memory or raise `maxmemory` (Redis); free disk space, start "
        "the members that `rs.status()` shows as unavailable, or `db.fsyncUnlock()` (MongoDB).",
    )
    CLOCKS_APART = (
        "clocks-apart",
        WARNING,
        "`clocks`",
        f"The clocks of MongoDB, Redis and this machine differ by more than {MAX_CLOCK_SKEW.total_seconds():.0f} s.",
        "Synchronize the clocks of these machines, for example with NTP.",
    )
    SETTINGS_WARNING = (
        "settings-warning",
        WARNING,
        "`settings`, `review-requests`",
        "A setting has no effect, or leaves a system without work.",
        "Correct the environment, then restart the processes.",
    )


COMPONENTS = ("beat", "broker", "clocks", "mongodb", "redis", "settings", "workers")
"""The components to which a problem may belong instead of a system."""


class Problem(BaseModel, frozen=True):
    """A violation of a rule. There is at most one problem for each system and rule."""

    system: str = Field(description="The name of the system, or of the component, such as `mongodb` or `workers`.")
    rule: Rule = Field(description="The id of the rule in the health reference.")
    text: str = Field(description="What is wrong, with numbers and a few ids.")
    page: str | None = Field(default=None, description="The dashboard page that lists the items, if there is one.")

    @computed_field(description="`critical` or `warning`, by the rule.")  # type: ignore[prop-decorator]
    @property
    def severity(self) -> Severity:
        return self.rule.severity

    @computed_field(description="What to do.")  # type: ignore[prop-decorator]
    @property
    def action(self) -> str:
        return self.rule.action


def by_severity(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems, critical ones first."""
    return sorted(problems, key=lambda one: one.severity != CRITICAL)
