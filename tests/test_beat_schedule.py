"""Every line of the schedule names a registered task, expires within its period and obeys its flag."""

from __future__ import annotations

import pytest

from beat_schedule import SCHEDULE
from queue_manager.core.schedule import Every, celery_entries
from queue_manager.core.settings import Settings
from queue_manager.health import FIGURES
from tasks import app

lines = pytest.mark.parametrize("line", SCHEDULE, ids=lambda line: line.name)


def settings_with(line: Every, value: str) -> Settings:
    return Settings(_env_file=None, **{line.flag: value})  # type: ignore[call-arg, arg-type]


@lines
def test_it_names_a_registered_scan(line: Every) -> None:
    app.loader.import_default_modules()
    assert app.tasks[line.task].queue_name == "scans"


@lines
def test_its_message_expires_within_its_period_and_goes_to_the_scans(line: Every) -> None:
    entry = celery_entries(SCHEDULE, settings_with(line, "true"))[line.name]
    assert entry["schedule"] > 0
    assert entry["options"] == {"expires": entry["schedule"], "queue": "scans"}


@lines
@pytest.mark.parametrize(
    ("value", "fires"), [("true", True), ("false", False), ("1", False), ("True", False), ("yes", False)]
)
def test_only_the_word_true_switches_it_on(line: Every, value: str, fires: bool) -> None:
    assert (line.name in celery_entries(SCHEDULE, settings_with(line, value))) is fires


@lines
def test_health_has_its_figures(line: Every) -> None:
    assert line.name in FIGURES


def test_names_are_unique() -> None:
    assert len({line.name for line in SCHEDULE}) == len(SCHEDULE)


def test_support_snooze_fires_every_ten_seconds() -> None:
    (line,) = [line for line in SCHEDULE if line.name == "support-snooze"]
    assert line.seconds(Settings(_env_file=None)) == 10  # type: ignore[call-arg]
