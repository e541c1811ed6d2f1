"""Systems by the clients: shown, paused, triggered, their items listed and retried."""

from __future__ import annotations

import pytest

from models import mark, scan_run
from models.database import server_now
from queue_manager import pauses
from queue_manager.client import Client, ClientError
from queue_manager.core.clock import seconds
from queue_manager.operations.systems import find_system
from tests.client.clients import connected, url_of
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.web_process import shared_web

ROOMS = "support-snooze"


def test_systems_are_listed(client: Client) -> None:
    by_name = {system.name: system for system in client.systems.list()}
    assert by_name[ROOMS].is_on
    assert client.systems.get(ROOMS).title == by_name[ROOMS].title


def test_items_are_listed_and_retried(client: Client) -> None:
    rooms = [str(make_room(server_now() - seconds(age))) for age in range(5, 0, -1)]
    listed = [item.id for item in client.systems.items(ROOMS, order="oldest", page_size=2)]
    assert listed == rooms
    assert client.systems.retry(ROOMS, rooms[0])
    assert [item.id for item in client.systems.items(ROOMS, state="in-progress")] == rooms[:1]
    assert [item.id for item in client.systems.items(ROOMS, search=rooms[1])] == rooms[1:2]
    for sent, search in ((1, rooms[1]), (3, None)):
        retried = client.systems.retry_all(ROOMS, state="due", search=search)
        assert (retried.sent, retried.of) == (sent, sent)
    with pytest.raises(ClientError) as caught:
        client.systems.retry(ROOMS, rooms[0])
    assert (caught.value.status, caught.value.error) == (409, "wrong state")


@pytest.mark.parametrize("id", [".", "..", "a/b"])
def test_an_item_that_does_not_exist_is_not_found(id: str, client: Client) -> None:
    with pytest.raises(ClientError, match="There is no item") as caught:
        client.systems.retry(ROOMS, id)
    assert caught.value.status == 404


def test_a_system_is_paused_and_resumed(client: Client) -> None:
    client.systems.pause(ROOMS)
    client.systems.pause(ROOMS, reason="spilling")
    assert {name: pause.reason for name, pause in pauses.paused().items()} == {ROOMS: "spilling"}
    with pytest.raises(ClientError) as caught:
        client.systems.pause("rooms")
    assert (caught.value.status, caught.value.field) == (404, "name")
    client.systems.resume(ROOMS)
    assert pauses.paused() == {}


def test_a_mark_is_made(client: Client) -> None:
    client.systems.mark("v1.4")
    assert [one.text for one in mark.read(server_now() - seconds(60))] == ["v1.4"]


def test_a_scan_is_triggered_once(client: Client) -> None:
    assert client.systems.trigger(ROOMS)
    with pytest.raises(ClientError) as caught:
        client.systems.trigger(ROOMS)
    assert (caught.value.status, caught.value.error) == (409, "already running")


def test_a_trigger_that_is_switched_off_is_an_error(
    kind: str, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    web = shared_web(tmp_path_factory)
    with connected(kind, url_of(web.port)) as client, pytest.raises(ClientError, match="QM_HOOKS is off") as caught:
        client.systems.trigger(ROOMS)
    assert (caught.value.status, caught.value.error) == (404, "not found")


def test_a_list_of_scans_follows_the_cursor(client: Client) -> None:
    assert list(client.systems.scans(ROOMS)) == []
    for found in range(3):
        numbers = {"found": found, "claimed": 0, "enqueued": 0, "errors": 0, "duration_ms": 1}
        scan_run.record(find_system(ROOMS).scan_task, numbers, error=None, now=server_now() - seconds(3 - found))
    assert [scan.found for scan in client.systems.scans(ROOMS, page_size=2)] == [2, 1, 0]
