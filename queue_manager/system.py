"""The declaration of a system: one kind of due work.

Schedule, trigger, queue, page, navigation, lists, API, statistics, health, metrics, commands and index migration are
derived from it. Only systems that `beat_schedule.SYSTEMS` or `QM_SYSTEMS` names are scheduled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TypeVar
from urllib.parse import quote

from pymongo import IndexModel

from queue_manager.broker.keys import DEFAULT_QUEUE
from queue_manager.core.clock import milliseconds, seconds
from queue_manager.core.errors import ConfigurationError, NotFound, typed_reason, unavailable_server
from queue_manager.core.imports import import_named
from queue_manager.core.settings import Settings
from queue_manager.explanation import DispatchState, Explanation, Idle
from queue_manager.health_rules import MIN_LATE_AFTER, MISSED_RUNS, Rule
from queue_manager.items import STATES, Listed, State
from queue_manager.telemetry import counters
from queue_manager.telemetry.counters import Source
from queue_manager.telemetry.latency import BOUNDS_MS, Measure

MIN_SCAN_PERIOD = seconds(0.1)  # the shortest that a setting of a built-in system allows
SCANS_QUEUE = "scans"
SCHEDULE_PAGE = "/schedule"
DURATION_NAMES: Mapping[Measure, str] = {"due_to_done": "Due to done", "wait": "Wait", "run": "Run"}
_FLAG = "the name of the setting that switches the system on, such as QM_JOBS"
_PERIOD = f"a timedelta of at least {MIN_SCAN_PERIOD.total_seconds()} s"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
TASK_NAME = re.compile(r"\w+(\.\w+)+")
_PATH = re.compile(r"[\w-]+(/[\w-]+)+")
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a string"),
    "str | None": ((str, type(None)), "a string"),
    "bool": ((bool,), "True or False"),
    "timedelta": ((timedelta,), "a timedelta"),
}
"""By annotation of a field: the types that its value may have, and what it must be."""
T = TypeVar("T")
_UNIQUE = ("name", "scan_task", "item_task", "queue", "trigger", "page", "counted_as")


@dataclass(frozen=True, kw_only=True)
class SystemStats:
    """The state of one system: `numbers` by name, `details`, and `problems` by rule.

    A problem is one sentence: what is wrong, how many, which ids (five at most). The rule says what to do.
    """

    numbers: dict[str, float] = field(default_factory=dict)
    """`lag_seconds`: 0 if nothing is due; without it, the rule `lag` is not judged."""
    details: list[str] = field(default_factory=list)
    problems: dict[Rule, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    """Ids of items that have been due for too long, a few of them."""
    counted_to: int | None = None
    """Where counting due items stops: this number means that many or more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class System:
    """One kind of due work. Functions are called when their result is needed, and may read settings.

    Raises:
        ConfigurationError: a field is malformed.
    """

    name: str
    """Lower-case words with hyphens: the name in the schedule, the API, health, metrics and commands."""
    title: str
    """The heading of its page."""
    description: str
    """What it does, in one sentence."""
    every: timedelta | Callable[[Settings], timedelta]
    """The time between two scans; at least `MIN_SCAN_PERIOD`."""
    at: str | None = None
    """A cron expression (UTC), to scan at given times; `every` is then the time between two of them."""
    scan_task: str
    """The registered name of the scan task. Workers import the module before the last dot."""
    takes_epoch: bool = False
    """Whether the scan task has a parameter `epoch`, which gets the leader's epoch."""

    flag: str | None = None
    """The setting that switches it on, such as `QM_JOBS`; `None`: it is always on."""
    may_run: Callable[[Settings], bool] = lambda _: True
    """Whether its scans may run in this environment, if it is switched on."""

    item_task: str | None = None
    """The registered name of the task of one item; `None` if the scan acts itself."""
    queue: str | None = None
    """The Celery queue of its items."""
    items: Callable[[], Listed] | None = None
    """Opens the list of its items, for its page and for manual retries."""
    item_states: Sequence[State] = STATES
    """The states that its items can have, in the order of the tabs of its page."""
    items_name: str = "items"
    """The word for several items."""
    item_name: str = ""
    """The word for one item; by default `items_name` without its last letter."""
    attempts_name: str = "Times failed"
    """The title of `Item.attempts` in lists."""
    explain: Callable[[str, DispatchState], Sequence[Explanation]] = lambda *_: ()
    """Explains what an id names among its items, messages or jobs."""

    trigger: str = ""
    """The path after `/api/trigger/` that starts a scan manually; by default `systems/<name>`."""
    page: str = ""
    """The path of its page; by default `/systems/<name>`, or the schedule if it lists no items."""
    state_pages: Mapping[str, str] = field(default_factory=dict)
    """By state: the page that lists the items in it, where that is not `<page>?state=<state>`."""

    item_url: Callable[[Settings], str | None] = lambda _: None
    """Returns the URL of an item in the product, with `{id}` for its id; `None` if there is none."""

    stats: Callable[[], SystemStats] = SystemStats
    """Reads its statistics."""
    stats_server: str = "MongoDB"
    """The servers that `stats` reads, as errors name them."""
    slow_numbers: Callable[[], Mapping[str, float]] | None = None
    """Numbers that the overview adds to those of `stats`. They take long, so they are read less often."""
    counted_as: str | None = None
    """The name under which finished items are counted; by default the queue's."""
    counts: Callable[[], Source] | None = None
    """Returns where finished items are counted, if not under `counted_as`."""
    on_time_within: timedelta = timedelta(milliseconds=250)
    """How long an item may take and still be on time: one of the bounds in docs/reference/metrics.md#latency."""
    on_time_of: Measure = "due_to_done"
    """The duration that `on_time_within` bounds; `wait` if the work itself may take any time."""
    duration_names: Mapping[Measure, str] = field(default_factory=lambda: DURATION_NAMES)
    """The names of the durations on the page."""

    collections: Callable[[], Mapping[str, Sequence[IndexModel]]] = dict
    """Returns its collections and their indexes, for `migrate`."""
    obsolete_indexes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By collection: the names of indexes of earlier releases, which `migrate --finish` drops."""
    obstacles: Callable[[], Sequence[str]] = list
    """Returns what to repair before `migrate` can create the indexes, a line each."""
    adoption_notes: Callable[[], Sequence[str]] = list
    """Returns what the program that did this work before left behind, a line each, for `queue-manager adopt`."""
    adoption_effects: Sequence[str] = ()
    """Effects on that program while both run, a line each; shown if it left anything behind."""
    adoption_steps: Sequence[str] = ()
    """What to do next, a line each; shown like the effects."""

    def __post_init__(self) -> None:
        is_name = isinstance(self.name, str) and _NAME.fullmatch(self.name)
        self._require(is_name, "name", "lower-case words with hyphens, such as trial-end")
        self._require_types()
        self._default("trigger", f"systems/{self.name}")
        self._default("page", f"/systems/{self.name}" if self.items is not None else SCHEDULE_PAGE)
        self._default("counted_as", self.queue)
        self._default("item_name", self.items_name.removesuffix("s"))
        for name in ("scan_task", "item_task"):
            value = getattr(self, name)
            self._require(
                value is None or TASK_NAME.fullmatch(value), name, "a task's name, such as billing.trials.scan"
            )
        self._require(callable(self.every) or _is_period(self.every), "every", _PERIOD)
        self._require(self.at is None or _is_cron(self.at), "at", "a cron expression such as '0 * * * *'")
        is_bound = milliseconds(self.on_time_within) in BOUNDS_MS
        bounds = ", ".join(map(str, BOUNDS_MS))
        self._require(is_bound, "on_time_within", f"one of these numbers of milliseconds: {bounds}")
        self._require(self.flag is None or self.flag.lower() in Settings.model_fields, "flag", _FLAG)
        self._require(self.queue not in ("", DEFAULT_QUEUE, SCANS_QUEUE), "queue", "a queue of its own")
        self._require(_PATH.fullmatch(self.trigger), "trigger", "a path of two words or more, such as billing/trials")
        self._require(self.page.startswith("/"), "page", "a path such as /systems/trial-end")
        is_retried = self.items is None or (self.item_task is not None and self.queue is not None)
        self._require(is_retried, "items", "given together with item_task and queue")

    def _require_types(self) -> None:
        for one in fields(self):
            value, annotation = getattr(self, one.name), str(one.type)
            if annotation.startswith("Callable"):
                is_absent = value is None and annotation.endswith("| None")
                self._require(callable(value) or is_absent, one.name, "a function")
            elif annotation in _TYPES:
                types, accepted = _TYPES[annotation]
                self._require(isinstance(value, types), one.name, accepted)

    def _default(self, name: str, value: object) -> None:
        """Set a field that was not given."""
        if not getattr(self, name):
            object.__setattr__(self, name, value)

    def _require(self, is_right: object, name: str, accepted: str) -> None:
        if not is_right:
            raise ConfigurationError(f"System {self.name!r}: {name}={getattr(self, name)!r} must be {accepted}")

    @property
    def imported_tasks(self) -> Sequence[str]:
        """The tasks whose modules a worker imports."""
        return [self.scan_task] if self.item_task is None else [self.scan_task, self.item_task]

    def check(self) -> None:
        """Raise ConfigurationError if the declaration is incomplete, once its module is imported."""

    def call(self, name: str, function: Callable[..., T], *arguments: object) -> T:
        """Call a function of the declaration. Raises ConfigurationError, naming it, for any error but an outage."""
        try:
            return function(*arguments)
        except ConfigurationError:
            raise
        except Exception as error:
            if unavailable_server(error) is not None:
                raise
            raise ConfigurationError(f"System {self.name!r}: `{name}` raised {typed_reason(error)}") from error

    def _returned(self, name: str, value: T, is_right: bool, accepted: str) -> T:
        """Return what a function of the declaration returned. Raises ConfigurationError if it is not right."""
        if not is_right:
            raise ConfigurationError(f"System {self.name!r}: `{name}` returned {value!r:.200}, not {accepted}")
        return value

    def period(self, chosen: Settings) -> timedelta:
        """Return the time between two scans."""
        every = self.call("every", self.every, chosen) if callable(self.every) else self.every
        return self._returned("every", every, _is_period(every), _PERIOD)

    def read_stats(self) -> SystemStats:
        """Return what `stats` reads. Raises ConfigurationError if that is not `SystemStats` with numbers."""
        found = self.stats()
        is_right = isinstance(found, SystemStats) and all(
            isinstance(one, int | float) for one in found.numbers.values()
        )
        return self._returned("stats", found, is_right, "SystemStats with numbers")

    def read_state(self) -> SystemStats:
        """Return its statistics. Raises ConfigurationError also if `collections` or `counts` is wrong."""
        self.read_collections()
        self.source()
        return self.read_stats()

    def read_collections(self) -> Mapping[str, Sequence[IndexModel]]:
        """Return what `collections` returns. Raises ConfigurationError if that is not indexes by collection."""
        found = self.call("collections", self.collections)
        is_right = isinstance(found, Mapping) and all(
            isinstance(indexes, Sequence) and all(isinstance(one, IndexModel) for one in indexes)
            for indexes in found.values()
        )
        return self._returned("collections", found, is_right, "lists of IndexModel by collection")

    def late_after(self, chosen: Settings) -> timedelta:
        """Return how long the scan may not have run, or an item may be due, before that is a problem."""
        return max(MISSED_RUNS * self.period(chosen), MIN_LATE_AFTER)

    def is_switched_on(self, chosen: Settings) -> bool:
        """Return True if its flag is set: its indexes are migrated."""
        return self.flag is None or bool(getattr(chosen, self.flag.lower()))

    def is_on(self, chosen: Settings) -> bool:
        """Return True if its scans run here."""
        return self.is_switched_on(chosen) and self.call("may_run", self.may_run, chosen)

    def idle(self, chosen: Settings, *, is_paused: bool) -> Idle | None:
        """Return why its scans dispatch nothing, or `None` if they dispatch."""
        if is_paused:
            return "paused"
        return "dry run" if self.name in chosen.qm_dry_run else None

    def source(self) -> Source | None:
        """Return where its finished items are counted; `None` if they are not.

        Raises:
            ConfigurationError: `counts` returned no Source.
        """
        if self.counts is not None:
            found = self.call("counts", self.counts)
            return self._returned("counts", found, isinstance(found, Source), "a Source")
        return None if self.counted_as is None else counters.source(self.counted_as)

    @property
    def trigger_path(self) -> str:
        """The path in the API that starts its scan."""
        return f"/api/trigger/{self.trigger}"

    def page_of(self, state: str) -> str:
        """Return the page that lists its items in a state, or that are `late`; its page if it lists none."""
        if self.items is None and not self.state_pages:
            return self.page
        return self.state_pages.get(state, f"{self.page}?state={'due' if state == 'late' else state}")

    def open_items(self) -> Listed:
        """Return the list of its items. Raises `NotFound` if it lists none."""
        if self.items is None:
            raise NotFound(f"The system {self.name} lists no items", field="name")
        return self.items()

    def page_of_item(self, id: str) -> str:
        """Return the page of one item, message or job."""
        return f"{self.page}/{quote(id, safe='')}"

    def path_of_item(self, id: str) -> str:
        """Return the path of one item in the API."""
        return f"/api/systems/{self.name}/items/{quote(id, safe='')}"


def _is_period(value: object) -> bool:
    return isinstance(value, timedelta) and value >= MIN_SCAN_PERIOD


def _is_cron(line: str) -> bool:
    """Return True if beat can run a scan at these times."""
    from celery.schedules import ParseException, crontab  # here, because the import is slow and rarely needed

    try:
        crontab.from_string(line)
    except (ParseException, ValueError, TypeError, AttributeError):
        return False
    return True


def item_queues(systems: Iterable[System]) -> list[str]:
    """Return the Celery queues of all items."""
    return [system.queue for system in systems if system.queue is not None]


def read_each(systems: Iterable[System], read: Callable[[System], T]) -> dict[str, T]:
    """Return what a method of System returns, by system; health reports those that raise ConfigurationError."""
    found: dict[str, T] = {}
    for system in systems:
        with suppress(ConfigurationError):
            found[system.name] = read(system)
    return found


def sources(systems: Iterable[System]) -> dict[str, Source]:
    """Return where finished items are counted, by system, without those whose `counts` is wrong."""
    return {name: source for name, source in read_each(systems, System.source).items() if source is not None}


def task_modules(systems: Iterable[System]) -> list[str]:
    """Return the modules of the systems' tasks."""
    names = [name for system in systems for name in system.imported_tasks]
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))


def declared(modules: Iterable[str], *, setting: str = "QM_SYSTEMS") -> list[System]:
    """Import modules, and return the systems that they declare.

    Args:
        setting: the setting that names the modules, for errors.

    Raises:
        ConfigurationError: a module cannot be imported, or declares no system.
    """
    found: list[System] = []
    for name in modules:
        module = import_named(name, setting=setting)
        # By type(): isinstance() would evaluate the proxies of Celery's tasks, which read its configuration.
        values = [
            one for value in vars(module).values() for one in (value if type(value) in (list, tuple) else [value])
        ]
        of_module = [value for value in values if issubclass(type(value), System)]
        if not of_module:
            raise ConfigurationError(f"{setting}: {name!r} declares no System")
        found += [system for system in of_module if not any(system is known for known in found)]
    return found


def require_distinct(systems: Iterable[System]) -> None:
    """Raise ConfigurationError if a declaration is incomplete, or two share a name, a task, a queue, or a path."""
    taken: dict[tuple[str, str], System] = {}
    for system in systems:
        system.check()
        for name in _UNIQUE:
            value = getattr(system, name)
            if value is None or value == SCHEDULE_PAGE:
                continue
            first = taken.setdefault((name, value), system)
            if first is not system:
                owner = f"{first.name!r} ({first.item_task or first.scan_task})"
                raise ConfigurationError(f"System {system.name!r}: {name}={value!r} is taken by {owner}")
