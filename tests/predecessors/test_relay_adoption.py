"""`queue-manager adopt` for the message queue: its report about streams, consumers and messages of Relay."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.servers import Valkey
from services.message_queue.adoption import EFFECTS, STEPS, adoption_notes
from tests.docs.transcript import Transcript
from tests.documented import DOCS, block, output
from tests.e2e.commands import queue_manager
from tests.predecessors.relay import Relay
from tests.real_servers import Servers
from tests.services.message_queue.message_lab import Lab


def fill(relay: Relay) -> None:
    """Leave messages in every stream of Relay, and one that its consumer holds."""
    for type in ("mail", "dead", "archived", "held"):
        relay.enqueue(type, priority=5)
    for _ in range(2):
        relay.enqueue("waiting")
    relay.nack(relay.take("mail"))
    relay.dead_letter(relay.take(), "broken")
    relay.archive(relay.take())
    relay.take()


def test_streams_of_relay_are_counted(lab: Lab, relay: Relay) -> None:
    fill(relay)
    *lengths, consumer = adoption_notes(lab.scripts, 10)
    assert lengths == [
        "2 messages in q",
        "2 messages in q_p5, 1 of them in processing",
        "1 dead letter in q_dlq",
        "1 message in q_archived",
    ]
    assert consumer.startswith("consumer consumer-1 read ")
    assert consumer.endswith("it may run until you stop it")


def test_plan_changes_nothing(lab: Lab, relay: Relay) -> None:
    fill(relay)
    before = {key: lab.client.dump(key) for key in lab.client.scan_iter()}
    adoption_notes(lab.scripts, 10)
    assert {key: lab.client.dump(key) for key in lab.client.scan_iter()} == before


def test_unread_messages_are_counted(lab: Lab, relay: Relay) -> None:
    relay.enqueue("mail")
    assert adoption_notes(lab.scripts, 10) == ["1 message in q"]


def test_signed_messages_are_counted_in_every_stream(lab: Lab) -> None:
    signing = Relay(lab.client, "q", secret="a secret")
    for priority in (0, 3):
        for _ in range(25):
            signing.enqueue("mail", {"pipe": "|"}, priority)
    Relay(lab.client, "q").enqueue("mail", {"text": "}|" + "0" * 64})
    *_, note = adoption_notes(lab.scripts, 10)
    assert note.startswith("50 signed messages")
    assert "ENABLE_ENCRYPTION" in note


def test_queue_without_other_programs_has_no_predecessor(lab: Lab) -> None:
    assert adoption_notes(lab.scripts, 10) == []
    for id in ("waiting", "held"):
        lab.queue.enqueue("mail", id=id, priority=3)
    lab.take()
    assert adoption_notes(lab.scripts, 10) == []


def test_consumer_group_of_another_application_is_ignored(lab: Lab, relay: Relay) -> None:
    relay.enqueue("mail")
    lab.client.xgroup_create("q", "analytics", "0")
    lab.client.xreadgroup("analytics", "reader", {"q": ">"})
    assert adoption_notes(lab.scripts, 10) == ["1 message in q"]


@pytest.mark.processes
def test_command_shows_findings_changes_and_next_steps(clean: Servers, server: Valkey, tmp_path: Path) -> None:
    with Lab(server.url, name="queue", levels=10) as lab:
        lab.empty()
        fill(Relay(lab.client, "queue"))
    env = {"QM_MESSAGE_QUEUE": "true", "QM_QUEUE_REDIS_URL": server.url}
    result = queue_manager("adopt", cwd=tmp_path, **env)
    assert result.returncode == 0, result.stderr
    for line in ("  found    1 dead letter in queue_dlq", *(f"  effects  {effect}" for effect in EFFECTS)):
        assert f"\n{line}\n" in result.stdout
    steps = "".join(f"  next     {step}\n" for step in STEPS)
    assert steps in result.stdout


@pytest.mark.processes
def test_command_shows_what_the_documentation_shows(clean: Servers, server: Valkey, tmp_path: Path) -> None:
    with Lab(server.url, name="queue", levels=10) as lab:
        lab.empty()
        fill(Relay(lab.client, "queue"))
        for _ in range(3):
            Relay(lab.client, "queue", secret="a secret").enqueue("mail")
    result = queue_manager("adopt", cwd=tmp_path, QM_MESSAGE_QUEUE="true", QM_QUEUE_REDIS_URL=server.url)
    shown = output(block(0, heading="Relay", page=DOCS / "migrating.md"))
    assert Transcript().matches(shown, result.stdout), result.stdout


@pytest.mark.processes
def test_command_names_the_unavailable_server(clean: Servers, tmp_path: Path) -> None:
    url = "redis://127.0.0.1:1/0"
    result = queue_manager("adopt", cwd=tmp_path, QM_MESSAGE_QUEUE="true", QM_QUEUE_REDIS_URL=url)
    assert result.returncode == 1
    assert f"The queue's server at {url} does not answer" in result.stderr
