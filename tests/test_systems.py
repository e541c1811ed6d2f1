"""Wrong declarations of systems are refused in one sentence that names the system and the field."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from beat_schedule import SYSTEMS
from models import schema
from models.alert import Key
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.retry import RetryPolicy
from queue_manager.core.settings import Settings
from queue_manager.health import problems, readings
from queue_manager.health_rules import Problem, Rule
from queue_manager.system import System, SystemStats, declared, require_distinct
from queue_manager.web.routes.metrics import collector, statistics
from queue_manager.web.routes.systems.events import OverviewStates
from queue_manager.worker.lifecycle import require_work
from services import support_snooze
from services.job_queues import InvalidJob, job
from tasks.item import item_task
from tasks.support_snooze import unsnooze_room
from tasks.systems import require_tasks
from tests.eventually import eventually
from tests.services.test_due_documents import declare


def trial_end(**fields: Any) -> System:
    required = {
        "name": "trial-end",
        "title": "Trials",
        "description": "Trial accounts, expired when their trial is over.",
        "every": timedelta(seconds=10),
        "scan_task": "billing.trial_end.scan",
    }
    return System(**{**required, **fields})


def test_defaults_follow_from_the_name_and_the_queue() -> None:
    system = trial_end(queue="trials", item_task="billing.trial_end.end_trial", items=list)
    shown = (system.page, system.page_of("stuck"), system.trigger, system.counted_as)
    assert shown == ("/systems/trial-end", "/systems/trial-end?state=stuck", "systems/trial-end", "trials")
    assert system.is_on(Settings(_env_file=None))  # type: ignore[call-arg]


def test_a_system_without_a_list_links_to_the_schedule() -> None:
    assert trial_end().page == "/schedule"


def of_numbers(numbers: Any) -> SystemStats:
    return SystemStats(numbers=numbers)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[System], None]:
    """Let a system be the only one."""
    return lambda system: monkeypatch.setattr(readings, "systems", lambda: [system])


def numbers_of() -> dict[str, float]:
    """Return the samples of the metrics."""
    metrics = statistics(asyncio.run(readings.read_stats()))
    return {sample.name: sample.value for metric in metrics for sample in metric.samples}


@pytest.mark.parametrize("stats", [dict, lambda: of_numbers({"due": None}), lambda: of_numbers({"due": "5"})])
def test_stats_that_are_not_numbers_are_omitted_from_the_metrics(
    only: Callable[[System], None], stats: Callable[[], Any]
) -> None:
    system = trial_end(stats=stats)
    with pytest.raises(
        ConfigurationError, match=r"^System 'trial-end': `stats` returned .*, not SystemStats with numbers$"
    ):
        system.read_stats()
    only(system)
    assert numbers_of() == {}


def test_stats_that_fail_are_omitted_from_the_metrics(only: Callable[[System], None]) -> None:
    def fail() -> SystemStats:
        raise KeyError("key")

    only(trial_end(stats=fail))
    assert numbers_of() == {}
    only(trial_end(stats=lambda: of_numbers({"due": 5})))
    eventually(lambda: numbers_of() == {"queue_manager_due": 5})


def fail() -> Any:
    raise KeyError("BILLING")


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("function", "call", "error"),
    [
        ("collections", fail, "raised KeyError: 'BILLING'"),
        ("counts", fail, "raised KeyError: 'BILLING'"),
        ("collections", lambda: None, "returned None, not lists of IndexModel by collection"),
        ("collections", lambda: {"a": ["b"]}, "returned {'a': ['b']}, not lists of IndexModel by collection"),
        ("counts", lambda: "trials", "returned 'trials', not a Source"),
    ],
)
def test_an_error_in_a_declaration_is_a_problem_of_its_system_only(
    function: str, call: Callable[[], Any], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = trial_end(**{function: call})
    for module in (readings, problems):
        monkeypatch.setattr(module, "systems", lambda: [broken, support_snooze.system])
    found = asyncio.run(readings.read(60))
    assert found.in_mongodb is not None
    assert found.in_redis is not None
    (problem,) = [one for one in problems.all_problems(found) if one.rule is Rule.UNKNOWN_STATE]
    assert problem.system == "trial-end"
    assert problem.text == f"System 'trial-end': `{function}` {error}"
    is_judged = Key("trial-end", Rule.MISSING_INDEXES.id) in problems.outcomes(found)
    assert is_judged is (function != "collections")
    assert set(found.in_redis.recent) == {"support-snooze"}


@pytest.mark.usefixtures("clean")
def test_slow_numbers_of_documents_are_added_to_their_stats(only: Callable[[System], None]) -> None:
    system = declare(slow_numbers=lambda: {"unpaid": 5})
    schema.migrate([system])
    only(system)
    found = asyncio.run(readings.read())
    assert found.numbers_of("trial-end")["unpaid"] == 5
    assert "queue_manager_unpaid" not in {metric.name for metric in statistics(found.stats)}  # it may be minutes old


@pytest.mark.usefixtures("clean")
def test_a_scrape_reads_the_statistics_of_each_system_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, read_stats = Counter[str](), System.read_stats

    def counted(system: System) -> SystemStats:
        calls[system.name] += 1
        return read_stats(system)

    monkeypatch.setattr(System, "read_stats", counted)
    feed = SimpleNamespace(source=OverviewStates())
    request: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(overview_feed=feed)))
    assert list(asyncio.run(collector(request)).collect())
    assert calls["support-snooze"] == 1
    assert set(calls.values()) == {1}


def test_the_statistics_of_many_systems_are_read_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, at_once = threading.Lock(), [0, 0]  # now, and at most

    def slow() -> SystemStats:
        with lock:
            at_once[0] += 1
            at_once[1] = max(at_once)
        time.sleep(0.02)
        with lock:
            at_once[0] -= 1
        return of_numbers({"due": 5})

    many = [trial_end(name=f"trial-end-{number}", stats=slow) for number in range(150)]
    monkeypatch.setattr(readings, "systems", lambda: many)
    found = asyncio.run(readings.read_stats())
    assert [one for one in found.values() if not isinstance(one, SystemStats)] == []
    assert len(found) == 150
    assert at_once[1] <= readings.MAX_READ_AT_ONCE


def test_stats_that_hang_are_a_problem_and_occupy_few_threads(only: Callable[[System], None]) -> None:
    may_end, calls = threading.Event(), list[str]()

    def hang() -> SystemStats:
        calls.append(threading.current_thread().name)
        may_end.wait()
        return of_numbers({"due": 5})

    async def read_often() -> list[dict[str, SystemStats | Problem]]:
        reads = [readings.read_stats(2 * readings.REPORT_MARGIN) for _ in range(readings.MAX_CALLS + 5)]
        return await asyncio.gather(*reads)

    only(trial_end(stats=hang))
    try:
        for found in asyncio.run(read_often()):
            problem = found["trial-end"]
            assert isinstance(problem, Problem)
            assert problem.rule is Rule.UNKNOWN_STATE
            assert problem.text.startswith("Its `stats` did not return within 1 s, perhaps because MongoDB did not")
        eventually(lambda: len(calls) == readings.MAX_CALLS)
    finally:
        may_end.set()
    eventually(lambda: numbers_of() == {"queue_manager_due": 5})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("name", name) for name in ("Trial-End", "trial end", "trial_end", "-trial", "trial-", "", "ü")),
        *(("scan_task", task) for task in ("scan", "", "billing..scan")),
        ("item_task", "end_trial"),
        ("every", timedelta(0)),
        *(("at", line) for line in ("hourly", "61 * * * *", "0 * * *", "0 0 31 2 *", "1,,2 * * * *", 5, b"0 * * * *")),
        ("flag", "QM_TRIALS"),
        *(("queue", queue) for queue in ("scans", "queue-manager")),
        *(("trigger", trigger) for trigger in ("trials", "/api/trials", "trials/")),
        ("page", "trials"),
        ("items", list),
    ],
)
def test_a_malformed_field_is_named(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"^System '.*': {field}=.* must be .*$"):
        trial_end(**{field: value})


@pytest.mark.parametrize("field", ["name", "scan_task", "item_task", "queue", "trigger", "page", "counted_as"])
def test_value_used_by_another_system_is_refused(field: str) -> None:
    jobs = SYSTEMS[-1]
    second = trial_end(**{field: getattr(jobs, field)})
    with pytest.raises(ConfigurationError, match=rf"^System '{second.name}': {field}=.* is taken by 'job-queues' "):
        require_distinct([*SYSTEMS, second])


@pytest.mark.parametrize("field", ["every", "may_run", "collections", "counts"])
def test_an_error_of_a_function_of_the_declaration_names_the_system_and_the_function(field: str) -> None:
    def fail(*_: object) -> Any:
        raise KeyError("BILLING_SECONDS")

    system, chosen = trial_end(**{field: fail}), Settings(_env_file=None)  # type: ignore[call-arg]
    calls: dict[str, Callable[[], object]] = {
        "every": lambda: system.period(chosen),
        "may_run": lambda: system.is_on(chosen),
        "collections": system.read_collections,
        "counts": system.source,
    }
    with pytest.raises(
        ConfigurationError, match=rf"^System 'trial-end': `{field}` raised KeyError: 'BILLING_SECONDS'$"
    ):
        calls[field]()


def test_a_queue_that_is_not_that_of_the_task_is_refused() -> None:
    snooze = next(system for system in SYSTEMS if system.name == "support-snooze")
    tasks: dict[str, Any] = {"scan_task": snooze.scan_task, "item_task": snooze.item_task}
    wrong = System(name="wrong", title="", description="", every=timedelta(seconds=1), queue="wrongs", **tasks)
    require_tasks([snooze])
    with pytest.raises(
        ConfigurationError, match=r"'wrong': queue='wrongs' must be 'support-snooze', the queue of its task"
    ):
        require_tasks([wrong])


@pytest.mark.parametrize("field", ["scan_task", "item_task"])
def test_a_plain_task_with_the_name_of_a_task_of_a_system_is_refused(field: str) -> None:
    """Such as a function with `@shared_task` in addition to `@trials.item()` or `@scan_task(…)`."""
    snooze = SYSTEMS[0]
    tasks: dict[str, Any] = {
        "scan_task": snooze.scan_task,
        "item_task": snooze.item_task,
        field: "celery.backend_cleanup",
    }
    wrong = trial_end(**tasks, queue=str(snooze.queue))
    with pytest.raises(
        ConfigurationError, match=r"'trial-end': 'celery.backend_cleanup' is a plain Celery task: remove `@shared_task`"
    ):
        require_tasks([wrong])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"work": support_snooze.system}, "work=.* must be the function that returns it, without a call"),
        ({"retry": 5}, "retry=5 must be a RetryPolicy"),
    ],
    ids=["work", "retry"],
)
def test_wrong_arguments_of_an_item_task_are_refused(wrong: dict[str, Any], said: str) -> None:
    retry = RetryPolicy(max_attempts=5, base=timedelta(seconds=1))
    with pytest.raises(ConfigurationError, match=f"^item_task: {said}"):
        item_task(**{"queue": "trials", "work": lambda: None, "retry": retry, **wrong})


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda: dict[str, Any]()["trials"], "`work` raised KeyError: 'trials'"),
        (lambda: None, "`work` returned None, not DueWork"),
    ],
    ids=["raises", "returns"],
)
def test_an_item_task_without_its_work_is_refused(
    work: Callable[[], Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsnooze_room, "work", work)
    with pytest.raises(ConfigurationError, match=f"^System 'support-snooze': {said}$"):
        require_work()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_attempts": "5"}, "max_attempts='5' must be a number above zero, or None"),
        ({"max_attempts": 0}, "max_attempts=0 must be a number above zero, or None"),
        ({"base": 1}, "base=1 must be a timedelta that is not negative"),
        ({"cap": timedelta(seconds=-1)}, "must be a timedelta that is not negative"),
    ],
    ids=str,
)
def test_a_malformed_retry_policy_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        RetryPolicy(**{"max_attempts": 5, "base": timedelta(seconds=1), **given})


def test_the_decorator_of_a_job_needs_a_name() -> None:
    with pytest.raises(InvalidJob, match="write `@job"):
        job(lambda: None)  # type: ignore[arg-type]


def test_built_in_systems_are_distinct_and_hashable() -> None:
    require_distinct(SYSTEMS)
    assert len({*SYSTEMS}) == len(SYSTEMS)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            None,
            "cannot be imported (ModuleNotFoundError: No module named 'declares_nothing'; install its package, or add "
            "its directory to PYTHONPATH)",
        ),
        ("\n1 / 0", "cannot be imported (ZeroDivisionError: division by zero; {file}:2)"),
        ("raise SystemExit(0)", "cannot be imported (SystemExit: 0; {file}:1)"),
        (
            "import no_such_module",
            "cannot be imported (ModuleNotFoundError: No module named 'no_such_module'; {file}:1)",
        ),
        ("import json\njson.loads('')", "(JSONDecodeError: Expecting value: line 1 column 1 (char 0); {file}:2)"),
        (
            "from queue_manager import RetryPolicy\nRetryPolicy(max_attempts=0, base=5)",
            "(RetryPolicy: max_attempts=0 must be a number above zero, or None; {file}:2)",
        ),
        ("def (", "(SyntaxError: invalid syntax (declares_nothing.py, line 1))"),
        ("", "declares no System"),
    ],
)
def test_a_module_without_a_system_is_named(
    source: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])  # the directory is added, and must be gone for the next test
    monkeypatch.delitem(sys.modules, "declares_nothing", raising=False)
    if source is not None:
        (tmp_path / "declares_nothing.py").write_text(source)
    with pytest.raises(ConfigurationError) as refused:
        declared(["declares_nothing"])
    assert str(refused.value).startswith("QM_SYSTEMS: 'declares_nothing' ")
    assert str(refused.value).endswith(said.format(file=tmp_path / "declares_nothing.py"))


def test_systems_in_a_list_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "declares_several.py").write_text(
        "from datetime import timedelta\n"
        "from queue_manager import System\n"
        "fields = dict(title='T', description='D.', every=timedelta(seconds=10))\n"
        "systems = [System(name=f's-{n}', scan_task=f'declares_several.scan_{n}', **fields) for n in range(2)]\n"
    )
    assert [system.name for system in declared(["declares_several"])] == ["s-0", "s-1"]


def test_a_system_named_by_two_modules_is_registered_once() -> None:
    assert declared(["services.job_queues", "services.job_queues"]) == [SYSTEMS[-1]]
