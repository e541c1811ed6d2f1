"""Every line of the schedule names a registered task, fires within its period and obeys its flag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.schedules import crontab, maybe_schedule

import beat_schedule
from beat_schedule import SYSTEMS, warnings
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import Settings
from queue_manager.system import System, item_queues
from tasks import app
from tasks.item import ItemTask
from tasks.systems import beat_entries

every_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)


@pytest.fixture
def switched(monkeypatch: pytest.MonkeyPatch) -> Callable[[System, str], Settings]:
    def switch(system: System, value: str) -> Settings:
        monkeypatch.setenv(str(system.flag), value)
        return Settings(_env_file=None)  # type: ignore[call-arg]

    return switch


@every_system
def test_beat_schedule_names_registered_tasks(system: System) -> None:
    app.loader.import_default_modules()
    assert {system.scan_task, system.item_task} - {None} <= set(app.tasks)


@every_system
def test_workers_consume_the_scan_of_every_system(system: System) -> None:
    app.loader.import_default_modules()
    assert app.tasks[system.scan_task].queue_name == "scans"
    assert "scans" in app.amqp.queues


def test_workers_consume_the_queue_of_every_item() -> None:
    app.loader.import_default_modules()
    of_items = {task.queue_name for task in app.tasks.values() if isinstance(task, ItemTask)}
    assert of_items == set(item_queues(SYSTEMS))
    assert of_items <= set(app.amqp.queues)


@every_system
def test_entry_fires_within_its_period_and_is_sent_to_scans_without_expiry(
    system: System, switched: Callable[[System, str], Settings]
) -> None:
    entry = beat_entries(SYSTEMS, switched(system, "true"))[system.name]
    now = datetime.now(UTC)
    schedule = maybe_schedule(entry["schedule"], app=app)
    schedule.nowfun = lambda: now
    longest = schedule.remaining_estimate(now)
    assert timedelta(0) < longest <= system.period(switched(system, "true"))
    assert entry["options"] == {"queue": "scans"}  # an expiry would be judged by the worker's clock


@every_system
@pytest.mark.parametrize(("value", "fires"), [("true", True), ("True", True), ("false", False), ("FALSE", False)])
def test_only_true_switches_a_system_on(
    system: System, value: str, fires: bool, switched: Callable[[System, str], Settings]
) -> None:
    assert (system.name in beat_entries(SYSTEMS, switched(system, value))) is fires


def test_periods_of_the_systems() -> None:
    on: Any = {str(system.flag).lower(): True for system in SYSTEMS}
    entries = beat_entries(SYSTEMS, Settings(_env_file=None, **on))  # type: ignore[call-arg]
    assert {name: entry["schedule"] for name, entry in entries.items()} == {
        "support-snooze": timedelta(seconds=10),
        "review-requests": timedelta(minutes=5),
        "stale-thumbnails": crontab(minute="0"),
        "overdue-messages": timedelta(seconds=5),
        "job-queues": timedelta(seconds=5),
    }


@pytest.fixture
def message_queue_on(change_settings: Callable[..., None]) -> Iterator[Callable[..., None]]:
    def change(**env: str) -> None:
        change_settings(QM_MESSAGE_QUEUE="true", **env)
        beat_schedule._checked.cache_clear()

    yield change
    beat_schedule._checked.cache_clear()


@pytest.mark.parametrize("name", ["scans", "queue-manager", "support-snooze"])
def test_message_queue_name_must_not_be_a_key_of_a_celery_queue(
    name: str, message_queue_on: Callable[..., None]
) -> None:
    message_queue_on(QUEUE_NAME=name)
    with pytest.raises(ConfigurationError, match=f"QUEUE_NAME='{name}': must not be the name of a Celery queue"):
        beat_schedule.systems()


@pytest.mark.parametrize(
    "accepted",
    [{"QUEUE_NAME": "jobs"}, {"QUEUE_NAME": "scans", "QM_QUEUE_REDIS_URL": "redis://127.0.0.1:1/1"}],
    ids=["of a system that is off", "on another server"],
)
def test_message_queue_may_have_the_name_of_a_celery_queue(
    accepted: dict[str, str], message_queue_on: Callable[..., None]
) -> None:
    message_queue_on(**accepted)
    assert beat_schedule.systems()


def test_a_built_in_system_that_qm_systems_names_is_registered_once(change_settings: Callable[..., None]) -> None:
    change_settings(QM_SYSTEMS='["services.support_snooze"]')
    assert beat_schedule.systems() == SYSTEMS


def test_absence_of_systems_is_one_warning(change_settings: Callable[..., None]) -> None:
    change_settings(QM_CONVERSATIONS="false")
    (warning,) = warnings()
    assert warning == (
        "no system is switched on, so no scan will run: set QM_CONVERSATIONS or QM_PROJECTS or "
        "QM_SITES_FIX_STALE_THUMBNAILS or QM_MESSAGE_QUEUE or QM_JOBS to true, or name modules in QM_SYSTEMS"
    )
