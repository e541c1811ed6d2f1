"""Many concurrent processes, some of them killed: each message is handled once, none is lost."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dev.servers import Valkey
from queue_manager.core.clock import seconds
from services.message_queue import QueueUnavailable
from tests.eventually import eventually
from tests.services.message_queue.message_lab import Lab
from tests.services.message_queue.queue_processes import begin, consume, do_everything, make, sweep

pytestmark = pytest.mark.crash

PROCESSES = 8


def storm(lab: Lab, directory: Path, messages: int) -> tuple[int, int]:
    """Send messages through eight processes; return how many were acknowledged, and how many died."""
    share = messages // PROCESSES
    expected = {f"{own}-{number}" for own in range(PROCESSES) for number in range(share)}
    notes = [directory / f"{own}" for own in range(PROCESSES)]
    processes = [begin(do_everything, lab.url, notes[own], str(own), share, len(expected)) for own in range(PROCESSES)]
    for process in processes:
        process.join()
        assert process.exitcode == 0

    done = Counter(id for path in notes for id in path.read_text().split())
    dead = lab.ids("dead")
    assert [id for id, times in done.items() if times > 1] == []
    assert len(set(dead)) == len(dead)
    assert set(dead).isdisjoint(done)
    assert {*dead, *done} == expected
    assert all(message.attempt == lab.max_attempts for message in lab.everything("dead"))

    counts = lab.contents.counts()
    assert (counts.main, counts.processing, counts.archived) == (0, 0, 0)
    assert (counts.total_acknowledged, counts.dead, counts.acknowledged) == (len(done), len(dead), 100)
    assert {id.decode() for id in lab.client.hkeys("q_metadata")} == {*dead, *lab.ids("acknowledged")}
    assert not lab.client.exists("q:deadlines", "q:pending_ids", "q:type:a", "q:type:b", "q:type:c")
    return len(done), len(dead)


def test_eight_processes_handle_every_message_once(
    lab: Lab, tmp_path: Path, kind: str, figure: Callable[[str], None]
) -> None:
    began = time.monotonic()
    done, dead = storm(lab, tmp_path, 5_000)
    took = time.monotonic() - began
    figure(f"message queue on {kind}: 8 processes, {done:,} acknowledged once and {dead} dead in {took:.1f} s")


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_eight_processes_handle_100_000_messages_once(
    lab: Lab, tmp_path: Path, kind: str, figure: Callable[[str], None]
) -> None:
    began = time.monotonic()
    done, dead = storm(lab, tmp_path, 100_000)
    took = time.monotonic() - began
    figure(f"message queue on {kind}: 8 processes, {done:,} acknowledged once and {dead} dead in {took:.1f} s")


def insist(lab: Lab, id: str) -> None:
    """Enqueue as a producer does whose reply was lost: again, with the same id."""
    while True:
        try:
            lab.queue.enqueue_batch([make(id)])
            return
        except QueueUnavailable:
            time.sleep(0.02)


def killing(server: Valkey, directory: Path, *, messages: int, kills: int) -> Counter[str]:
    """Kill consumers, the sweeper and the server at random while messages pass; return who was killed how often."""
    killed: Counter[str] = Counter()
    ids = [f"m-{number}" for number in range(messages)]
    roles = {**{f"consumer {number}": consume for number in range(3)}, "sweeper": sweep}
    with Lab(server.url, ack_timeout=seconds(0.2)) as lab:
        lab.empty()
        running = {role: begin(work, server.url, directory / role) for role, work in roles.items()}
        victims = random.choices([*roles, "server"], k=kills - 3)
        victims += ["server", "sweeper", "consumer 0"]
        for number, id in enumerate(ids):
            insist(lab, id)
            if number % (messages // kills) == 0 and victims:
                time.sleep(random.random() * 0.03)  # so that death comes at any moment of their work
                victim = victims.pop()
                killed[victim.split()[0]] += 1
                if victim == "server":
                    server.kill()
                    server.start()
                else:
                    running[victim].kill()
                    running[victim].join()
                    running[victim] = begin(roles[victim], server.url, directory / victim)
        eventually(lambda: lab.contents.counts().total_acknowledged >= messages, within=90)
        for process in running.values():
            process.kill()
            process.join()

        told = Counter(
            (event["type"], id)
            for event in map(json.loads, lab.events())
            for id in event["payload"].get("ids", [])
            if event["type"] in ("enqueue", "acknowledge")
        )
        assert told == Counter({(kind, id): 1 for kind in ("enqueue", "acknowledge") for id in ids})
        counts = lab.contents.counts()
        assert counts.total_acknowledged == messages
        assert (counts.main, counts.processing, counts.dead, counts.acknowledged) == (0, 0, 0, min(messages, 100))
        assert not lab.client.exists("q:deadlines", "q:pending_ids", "q:type:a", "q:type:b", "q:type:c")
        notes = [line for role in roles for line in (directory / role).read_text().splitlines()]
        acknowledged = Counter(line.split()[1] for line in notes if line.startswith("acknowledged "))
        assert set(acknowledged.values()) == {1}
        # One may be acknowledged and die before it writes that down.
        assert messages - len(acknowledged) <= sum(killed.values()) * len(roles)
    return killed


@pytest.mark.smoke
def test_sigkill_loses_or_duplicates_no_message(
    kind: str, server_of: Callable[[str], Valkey], tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with type(server_of(kind))(tmp_path / "server") as server:
        killed = killing(server, tmp_path, messages=300, kills=8)
    figure(f"message queue on {kind}: 300 messages acknowledged once; killed: {dict(killed)}")


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_repeated_sigkill_loses_or_duplicates_no_message(
    kind: str, server_of: Callable[[str], Valkey], tmp_path: Path, figure: Callable[[str], None]
) -> None:
    killed: Counter[str] = Counter()
    for number in range(10):
        directory = tmp_path / f"{number}"
        with type(server_of(kind))(directory / "server") as server:
            killed += killing(server, directory, messages=1_500, kills=60)
    figure(f"message queue on {kind}: 15,000 messages acknowledged once; killed: {dict(killed)}")
