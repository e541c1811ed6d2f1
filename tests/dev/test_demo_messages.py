"""The demo's messages affect no others and stay few; messages of consumers that die are requeued."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from dev import demo_consumer, demo_messages, demo_rooms
from dev.children import spawn
from dev.demo_consumer import WorkFailed, take_one
from dev.ports import free_port
from dev.summary import Messages
from models.database import collection
from models.support_room import ROOMS_COLLECTION
from queue_manager.core.settings import settings
from services import message_queue as service
from services.message_queue import MessageQueue, NewMessage, QueueAdmin, message_queue, queue_admin, scripts, sweeper
from tests.dev.demo_process import running
from tests.eventually import eventually
from tests.real_servers import Servers

DIES_AT_ONCE = """
from dev import demo_consumer
demo_consumer.DEATH_CHANCE, demo_consumer.ACK_TIMEOUT = 1, 0.2
demo_consumer.MIN_DURATION = demo_consumer.MAX_DURATION = 0
demo_consumer.main()
"""
DEMO = [sys.executable, "-m", "dev.demo"]
ON = {"QM_CONVERSATIONS": "false", "QM_MESSAGE_QUEUE": "true"}


@pytest.fixture
def queue(clean: Servers) -> MessageQueue:
    return message_queue()


@pytest.fixture
def people(queue: MessageQueue) -> QueueAdmin:
    return queue_admin()


@pytest.fixture
def diligent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers that neither rest nor fail nor die."""
    for name in ("MIN_DURATION", "MAX_DURATION", "DEATH_CHANCE", "FAILURE_CHANCE", "RECEIVE_TIMEOUT"):
        monkeypatch.setattr(demo_consumer, name, 0)


def bury(queue: MessageQueue, people: QueueAdmin, *messages: NewMessage) -> list[str]:
    ids = [one.id for one in queue.enqueue_batch(messages)]
    people.move(ids, to="dead", source="main")
    return ids


def worked(queue: MessageQueue) -> int:
    take_one(queue)
    return queue_admin().counts().acknowledged


class TestProducer:
    def test_every_message_type_is_recognizable_as_demo(self, queue: MessageQueue, people: QueueAdmin) -> None:
        demo_messages.start(queue, people)
        messages = people.list("main").messages
        assert len(messages) == demo_messages.AT_START
        assert all(message.type.startswith("demo.") for message in messages)

    def test_demo_producer_stops_while_too_many_messages_wait(self, queue: MessageQueue, people: QueueAdmin) -> None:
        queue.enqueue_batch([NewMessage(type="somebodys") for _ in range(demo_messages.MAX_WAITING)])
        demo_messages.go_on(queue, people)
        assert people.counts().main == demo_messages.MAX_WAITING

    @pytest.mark.parametrize("place", ["dead", "archived"])
    def test_only_the_oldest_messages_of_the_demo_are_deleted(
        self, place: service.MessageState, queue: MessageQueue
    ) -> None:
        people = queue_admin()
        somebodys = bury(queue, people, NewMessage(type="demonstration", payload={"type": "demo.send_mail"}))
        made = bury(queue, people, *(demo_messages.new_message() for _ in range(demo_messages.RETENTION_COUNT + 2)))
        people.move([*somebodys, *made], to=place, source="dead")
        demo_messages.clear_up(people)
        left = {message.id for message in people.list(place, limit=1000).messages}
        assert left == {*somebodys, *made[2:]}


@pytest.mark.usefixtures("diligent")
class TestConsumer:
    def test_demo_consumer_takes_only_messages_of_the_demo(self, queue: MessageQueue, people: QueueAdmin) -> None:
        demos = queue.enqueue("demo.send_mail", {})
        somebodys = queue.enqueue("send_mail", {}, priority=9)
        eventually(lambda: worked(queue))
        assert [message.id for message in people.list("acknowledged").messages] == [demos]
        assert [message.id for message in people.list("main").messages] == [somebodys]

    def test_message_that_cannot_be_handled_is_dead_lettered_with_the_reason(
        self, queue: MessageQueue, people: QueueAdmin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(demo_consumer, "PRIORITIES", {"demo.charge_card": 9})
        queue.enqueue("demo.charge_card", {"fault": demo_messages.FAULT}, max_attempts=2)
        for _ in range(2):
            with pytest.raises(WorkFailed):
                take_one(queue)
        (dead,) = people.list("dead").messages
        assert dead.fields["last_error"] == f"WorkFailed: {demo_messages.FAULT}"

    def test_a_payload_of_any_form_is_handled(self, queue: MessageQueue) -> None:
        queue.enqueue("demo.send_mail", ["somebody", "tries"])
        eventually(lambda: worked(queue))

    @pytest.mark.slow
    def test_message_of_a_consumer_that_dies_is_requeued(self, queue: MessageQueue, people: QueueAdmin) -> None:
        id = queue.enqueue("demo.make_thumbnail", {})
        child = spawn([sys.executable, "-c", DIES_AT_ONCE], stdout=subprocess.PIPE)
        with child.stdout as said:  # type: ignore[union-attr]
            assert re.search(rf"comes back within .* s: demo.make_thumbnail {id}$", said.readline().decode().strip())
        assert child.wait() == -signal.SIGKILL
        assert people.counts().processing == 1
        assert eventually(lambda: sweeper().sweep().requeued) == [id]
        child.end(grace=30)


class TestProcess:
    def test_ended_consumer_is_replaced_and_all_end_with_the_demo(
        self, clean: Servers, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with demo_consumer.Consumers() as consumers:
            consumers.keep_running()
            first, second = running = list(consumers._running)
            first.kill()
            second.terminate()
            for child in running:
                child.wait()
            consumers.keep_running()
            replaced = list(consumers._running)
            assert len(replaced) == demo_consumer.CONSUMERS
        assert all(child.poll() is not None for child in replaced)
        assert capfd.readouterr().out.count("another one starts") == 1  # a death by SIGKILL is part of the demo

    @pytest.mark.slow
    def test_messages_are_produced_and_handled(self, people: QueueAdmin) -> None:
        with running(DEMO, ON) as child:
            eventually(lambda: people.counts().total_acknowledged)
        assert child.wait() == 0

    @pytest.mark.slow
    def test_demo_does_not_use_the_queue_if_configured(self, people: QueueAdmin) -> None:
        rooms = collection(ROOMS_COLLECTION)
        with running([*DEMO, "--no-messages"], {**ON, "QM_CONVERSATIONS": "true"}):
            # Each part has had its turn.
            eventually(lambda: rooms.count_documents({}) > demo_rooms.SNOOZED_AT_START)
        counts = people.counts()
        assert (counts.main, counts.processing, counts.total_acknowledged) == (0, 0, 0)


class TestSummary:
    def test_summary_counts_messages_since_the_previous_one(self, clean: Servers) -> None:
        before = replace(queue_admin().counts(), total_acknowledged=89, total_dead_lettered=2)
        messages = Messages()
        assert messages.describe(before) == ""
        after = replace(before, total_acknowledged=120, total_dead_lettered=3)
        assert messages.describe(after) == "31 messages handled, 1 message dead-lettered"
        assert messages.describe(after) == ""
        assert messages.describe(before) == ""  # the queue's server lost its data

    def test_an_unavailable_server_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        url = f"redis://127.0.0.1:{free_port()}/0"
        away = settings().model_copy(update={"qm_queue_redis_url": url})
        monkeypatch.setattr(scripts, "settings", lambda: away)
        service._scripts.take()
        try:
            assert Messages().line().startswith(f"The queue's server at {url} does not answer")
        finally:
            service._scripts.take()
