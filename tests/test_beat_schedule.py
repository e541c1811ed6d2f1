"""Every line of the schedule names a registered task, fires within its period and obeys its flag."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from celery.schedules import maybe_schedule

from beat_schedule import SCHEDULE
from queue_manager.core.schedule import Scan, celery_entries, item_queues
from queue_manager.core.settings import Settings
from queue_manager.health import FIGURES
from tasks import app
from tasks.base import ItemTask

FLAGS = {
    "support-snooze": "QM_CONVERSATIONS",
    "review-requests": "QM_PROJECTS",
    "stale-thumbnails": "QM_SITES_FIX_STALE_THUMBNAILS",
    "overdue-messages": "QM_MESSAGE_QUEUE",
    "job-queues": "QM_JOBS",
}
scans = pytest.mark.parametrize("scan", SCHEDULE, ids=lambda scan: scan.name)


@pytest.fixture
def switched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scan, str], Settings]:
    def switch(scan: Scan, value: str) -> Settings:
        monkeypatch.setenv(FLAGS[scan.name], value)
        return Settings(_env_file=None)  # type: ignore[call-arg]

    return switch


@scans
def test_it_names_a_registered_scan_that_workers_consume(scan: Scan) -> None:
    app.loader.import_default_modules()
    assert app.tasks[scan.task].queue_name == "scans"
    assert "scans" in app.amqp.queues


def test_workers_consume_the_queue_of_every_item() -> None:
    app.loader.import_default_modules()
    of_items = {task.queue_name for task in app.tasks.values() if isinstance(task, ItemTask)}
    assert of_items == set(item_queues(SCHEDULE))
    assert of_items <= set(app.amqp.queues)


@scans
def test_it_fires_within_its_period_and_its_message_goes_to_the_scans_without_expiry(
    scan: Scan, switched: Callable[[Scan, str], Settings]
) -> None:
    entry = celery_entries(SCHEDULE, switched(scan, "true"))[scan.name]
    now = datetime.now(UTC)
    schedule = maybe_schedule(entry["schedule"], app=app)
    longest = schedule.remaining_estimate(now)
    assert timedelta(0) < longest <= scan.period(switched(scan, "true"))
    assert entry["options"] == {"queue": "scans"}  # an expiry would be judged by the worker's clock


@scans
@pytest.mark.parametrize(("value", "fires"), [("true", True), ("True", True), ("false", False), ("FALSE", False)])
def test_only_the_word_true_switches_it_on(
    scan: Scan, value: str, fires: bool, switched: Callable[[Scan, str], Settings]
) -> None:
    assert (scan.name in celery_entries(SCHEDULE, switched(scan, value))) is fires


@scans
def test_health_has_its_figures(scan: Scan) -> None:
    assert scan.name in FIGURES


def test_names_are_unique() -> None:
    assert len({scan.name for scan in SCHEDULE}) == len(SCHEDULE)


def test_support_snooze_fires_every_ten_seconds() -> None:
    entries = celery_entries(SCHEDULE, Settings(_env_file=None, qm_conversations=True))  # type: ignore[call-arg]
    assert entries["support-snooze"]["schedule"] == timedelta(seconds=10)
