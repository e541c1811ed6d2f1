"""The table of checks behind `queue-manager doctor`, which `docs/reference/doctor.md` shows.

A check reports the problems of some health rules, what its function finds, or both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from queue_manager.core.clock import MAX_CLOCK_SKEW
from queue_manager.doctor import installation, mongodb, processes, redis_servers
from queue_manager.doctor.findings import Findings
from queue_manager.health_rules import Problem, Rule

SETTINGS = "settings"
SERVER_RULES = (Rule.SERVER_AWAY, Rule.SERVER_UNSUITABLE, Rule.REFUSED_WRITES)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check. `statement` is true if it finds nothing."""

    name: str
    statement: str
    find: Callable[[], Iterator[Findings]] | None = None
    rules: tuple[Rule, ...] = ()
    """The health rules whose problems belong to this check."""
    component: str | None = None
    """Only the problems of this component."""
    needs: tuple[str, ...] = (SETTINGS,)
    """The checks on which this one depends: `settings`, and those of servers that must answer, maybe itself."""

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(need for need in self.needs if need != SETTINGS)

    def covers(self, problem: Problem) -> bool:
        return problem.rule in self.rules and self.component in (None, problem.system)


VERSIONS = Check(
    name="versions",
    statement="Every dependency has a version that this release supports.",
    find=installation.versions,
    needs=(),
)
CHECKS = (
    Check(
        name="packages",
        statement="No package in the working directory hides one of Queue Manager.",
        find=installation.hidden_packages,
        needs=(),
    ),
    VERSIONS,
    Check(
        name=SETTINGS,
        statement="Every setting is valid and has an effect, and the modules that it names can be imported.",
        find=installation.invalid_settings,
        rules=(Rule.SETTINGS_WARNING,),
        needs=(),
    ),
    Check(
        name="mongodb",
        statement="MongoDB answers, accepts the credentials, is recent enough, and is a replica set.",
        find=mongodb.version,
        rules=(Rule.SERVER_AWAY, Rule.SERVER_UNSUITABLE),
        component="mongodb",
        needs=(SETTINGS, "mongodb"),
    ),
    Check(
        name="mongodb-permissions",
        statement="The user of MongoDB may do in every collection what the processes do.",
        find=mongodb.permissions,
    ),
    Check(
        name="write-concern",
        statement="A majority of the members of MongoDB confirms a write in time, once it is in the journal.",
        find=mongodb.journal,
        rules=(Rule.REFUSED_WRITES,),
        component="mongodb",
        needs=(SETTINGS, "mongodb"),
    ),
    Check(
        name="indexes",
        statement="Every index exists, and no document violates one or makes it slow.",
        find=mongodb.indexes,
        rules=(Rule.MISSING_INDEXES,),
        needs=(SETTINGS, "mongodb"),
    ),
    Check(
        name="redis",
        statement=(
            "Every Redis answers, accepts the credentials and writes, is recent enough and evicts no keys; only that "
            "of the message queue may be a cluster."
        ),
        find=redis_servers.of_message_queue,
        rules=SERVER_RULES,
        component="redis",
    ),
    Check(
        name="redis-permissions",
        statement="The user of each Redis may run every command on every key that is needed.",
        find=redis_servers.permissions,
    ),
    Check(
        name="redis-keys",
        statement="No other program has written a value of another type to a key of Queue Manager.",
        find=redis_servers.key_types,
    ),
    Check(
        name="persistence",
        statement="Every Redis writes an append-only file or has a replica, and has memory left.",
        find=redis_servers.persistence,
    ),
    Check(
        name="broker",
        statement="The broker answers, accepts the credentials and writes, and loses no messages.",
        find=processes.broker_at_redis_url,
        rules=SERVER_RULES,
        component="broker",
    ),
    Check(
        name="clocks",
        statement=(
            f"The clocks of MongoDB, Redis and this machine differ by at most {MAX_CLOCK_SKEW.total_seconds():.0f} s."
        ),
        rules=(Rule.CLOCKS_APART,),
        needs=(SETTINGS, "mongodb", "redis"),
    ),
    Check(
        name="leader",
        statement="A beat of this release leads.",
        rules=(Rule.NO_LEADER, Rule.OLD_LEADER),
        needs=(SETTINGS, "redis"),
    ),
    Check(
        name="workers",
        statement=(
            "Workers of this release and with the same database and broker consume every queue, and reach MongoDB."
        ),
        find=processes.other_workers,
        rules=(Rule.NO_WORKERS, Rule.PAUSED_WORKERS, Rule.QUEUE_WITHOUT_WORKER),
        needs=(SETTINGS, "redis"),
    ),
    Check(
        name="backlog",
        statement="No queue holds more than `QM_MAX_QUEUE` messages, or messages that nothing consumes.",
        find=processes.backlog,
        needs=(SETTINGS, "redis", "broker"),
    ),
    Check(
        name="dead-letters",
        statement="Neither the broker nor, if it is switched on, the message queue has dead letters.",
        rules=(Rule.DEAD_LETTERS, Rule.DEAD_MESSAGES),
        needs=(SETTINGS, "redis"),
    ),
    Check(
        name="systems",
        statement=(
            "The scans of the systems that are switched on run on time, and their due items are handled; no calls of "
            "`after` wait for another system."
        ),
        find=mongodb.calls_of_no_system,
        rules=(
            *(Rule.LAG, Rule.LATE_SCAN, Rule.SCAN_ERRORS, Rule.STUCK_ITEMS, Rule.FAILED_ITEMS, Rule.LOST_ITEMS),
            *(
                Rule.FAILING_CALLS,
                Rule.REPEATED_RESETS,
                Rule.FAILING_JOBS,
                Rule.LOST_JOBS,
                Rule.UNADOPTED_JOBS,
                Rule.UNREADABLE_DOCUMENTS,
            ),
            Rule.UNKNOWN_STATE,
        ),
        needs=(SETTINGS, "mongodb", "redis"),
    ),
    Check(
        name="old-release",
        statement="Release 0.1 has left no messages and no indexes.",
        find=processes.old_release,
        needs=(SETTINGS, "mongodb", "redis", "broker"),
    ),
)
