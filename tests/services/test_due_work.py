"""`DueWork` of a custom scan: invalid items are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

from models.database import server_now
from queue_manager import Due, DueWork, leases_of
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.errors import ConfigurationError
from tests.rooms import T0


class Reminders(DueWork):
    def find_due(self, until: datetime) -> Iterator[Due]:
        yield from ()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id": ObjectId("65b2f0a1c3d4e5f601234567")}, r"id=ObjectId\('65b2f0a1c3d4e5f601234567'\) must be a string"),
        ({"id": 5}, "id=5 must be a string"),
        ({"due_at": T0.replace(tzinfo=None)}, r"due_at=datetime\.datetime\(.*\) must be a datetime with a time zone"),
        ({"due_at": T0.date()}, r"due_at=datetime\.date\(.*\) must be a datetime with a time zone"),
        ({"due_at": None}, "due_at=None must be a datetime with a time zone"),
    ],
)
def test_invalid_item_is_named_with_the_reason(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Due: {said}"):
        Due(**{"id": "a", "due_at": T0, **fields})


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "returned NoneType"),
        ([{"_id": "a"}], "yielded dict"),
    ],
    ids=["nothing", "document"],
)
@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_function_that_yields_no_due_is_refused(
    found: object, said: str, is_dry_run: bool, change_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reminders, "find_due", lambda *_: found)
    if is_dry_run:
        change_settings(QM_DRY_RUN="reminders")
    with pytest.raises(ConfigurationError, match=rf"'reminders': `find_due` must yield `Due\(...\)`; it {said}$"):
        list(Reminders(leases=leases_of("reminders")).take_due(Backlog))


@pytest.mark.usefixtures("clean")
def test_an_item_that_is_given_up_cools_down_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reminders, "find_due", lambda *_: [Due(id="a", due_at=T0)])
    work = Reminders(leases=leases_of("reminders"))
    ((item,),) = [batch.items for batch in work.take_due(Backlog)]
    began = server_now()
    work.give_up(item, error="the mail server is unavailable")
    detail = work.leases.detail(item.lease)
    assert (detail.step, detail.at is not None and detail.at - began >= minutes(1)) == ("cooling", True)
    assert [batch.items for batch in work.take_due(Backlog)] == [[]]


@pytest.mark.parametrize("options", [{"max_rate": 20}, {"max_rate": 0, "period": seconds(1)}])
def test_a_rate_that_would_dispatch_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"'reminders': max_rate=.* must be a number of items per second, above"
    ):
        Reminders(leases=leases_of("reminders"), **options)


def test_a_rate_with_a_period_is_accepted() -> None:
    assert Reminders(leases=leases_of("reminders"), max_rate=0.5, period=timedelta(hours=1)).max_rate == 0.5
