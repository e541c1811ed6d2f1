"""`queue-manager queue`: as a user sees it, in a pipe and on a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from dev.ports import free_port
from queue_manager.cli.messages_render import indent_json
from queue_manager.cli.terminal import printable
from queue_manager.core.clock import seconds
from queue_manager.operations.messages import MessagesInState
from services.message_queue import Json, MessageQueue, NewMessage, queue_admin
from services.message_queue.browser import MESSAGE_STATES
from tests.deployment.programs import replaced
from tests.documented import DOCS, block
from tests.e2e.commands import COMMAND, environment, invoke, queue_manager, said_on_a_terminal
from tests.eventually import eventually
from tests.real_servers import Servers

NASTY = Json('{ "n":1.50, "big":12345678901234567890.10, "x":"[red]\\u001b[31m \x9b31m \x7f \u202e", "e":[] }')


def run(*arguments: str, answer: str = "", columns: int = 200) -> subprocess.CompletedProcess[str]:
    return invoke("queue", *arguments, answer=answer, columns=columns)


def on_a_terminal(*arguments: str) -> str:
    return said_on_a_terminal([*COMMAND, "queue", *arguments])


def bury(queue: MessageQueue, *messages: NewMessage) -> list[str]:
    ids = [one.id for one in queue.enqueue_batch(messages)]
    queue_admin().move(ids, to="dead", source="main", reason="the mail server is unavailable")
    return ids


class TestPause:
    def test_paused_types_wait_until_they_are_resumed(self, queue: MessageQueue) -> None:
        queue.enqueue("send_mail", id="first")
        assert run("pause", "send_mail", "export", "--reason", "a [red]spill").stdout == (
            "send_mail  paused\nexport  paused\n"
        )
        assert queue.dequeue() is None
        made = queue_admin().pauses()["send_mail"]
        assert (made.by, made.reason) == ("command line", "a [red]spill")
        listed = run("list").stdout
        assert "waiting (main) 1 " in listed
        assert "by command line: a [red]spill\n" in listed
        assert "Paused: send_mail since 20" in listed
        assert run("resume", "send_mail", "export").stdout == "send_mail  resumed\nexport  resumed\n"
        assert run("resume", "export").stdout == "export  was not paused\n"
        received = queue.dequeue()
        assert received is not None
        assert received.id == "first"

    def test_type_of_messages_in_any_state_is_known(self, queue: MessageQueue) -> None:
        for state in MESSAGE_STATES:
            id = queue.enqueue(f"{state}_mail")
            if state not in ("main", "processing"):
                queue_admin().move([id], to=state)
        queue.dequeue(type="processing_mail")
        types = [f"{state}_mail" for state in MESSAGE_STATES]
        assert run("pause", *types).stdout == "".join(f"{type}  paused\n" for type in types)

    def test_invalid_type_is_refused(self, queue: MessageQueue) -> None:
        refused = run("pause", "a\nb")
        assert refused.returncode != 0
        assert "types: must be" in refused.stderr
        assert queue_admin().pauses() == {}


class TestList:
    def test_messages_are_listed_newest_first_with_counts_of_each_state(self, queue: MessageQueue) -> None:
        queue.enqueue("send_mail", {"to": "ada"}, priority=5, id="first")
        queue.enqueue("export", [1], priority=5, id="second")
        queue.enqueue("held", id="third")
        queue.dequeue(type="held", consumer_id="mailer-1")
        result = run("list")
        title, second, first, counts = result.stdout.splitlines()
        assert title.split() == ["id", "type", "priority", "attempts", "age", "payload"]
        assert second.split()[:4] == ["second", "export", "5", "0"]
        assert first.split()[:4] == ["first", "send_mail", "5", "0"]
        assert first.rstrip().endswith('{"to":"ada"}')
        assert counts == "waiting (main) 2  processing 1  failed (dead) 0  acknowledged 0 (0 kept)  archived 0"
        assert "mailer-1" in run("list", "processing").stdout

    def test_a_page_prints_the_cursor_of_the_next(self, queue: MessageQueue) -> None:
        queue.enqueue_batch([NewMessage(type="send_mail", id=f"mail-{number}") for number in range(3)])
        page = run("list", "--limit", "2").stdout
        cursor = page.partition("there may be more: --cursor ")[2].split()[0]
        rest = run("list", "--cursor", cursor).stdout
        assert [id in page for id in ("mail-0", "mail-1", "mail-2")] == [False, True, True]
        assert [id in rest for id in ("mail-0", "mail-1", "mail-2")] == [True, False, False]
        assert "--cursor" not in rest

    def test_a_cursor_is_that_of_the_api_and_of_one_list(self, queue: MessageQueue) -> None:
        queue.enqueue_batch([NewMessage(type="send_mail", id=f"mail-{number}") for number in range(3)])
        cursor = json.loads(run("list", "--limit", "2", "--json").stdout)["cursor"]
        assert [one.id for one in MessagesInState(state="main").page(cursor, 2).messages] == ["mail-0"]
        for other in (["dead"], ["--ascending"], ["--sort", "priority"]):
            refused = run("list", *other, "--cursor", cursor)
            assert (refused.returncode, refused.stdout) == (2, "")
            assert refused.stderr == "queue-manager: --cursor: must be the cursor of an earlier page of the same list\n"

    def test_list_is_filtered(self, queue: MessageQueue) -> None:
        bury(queue, NewMessage(type="send_mail", payload={"to": "ADA"}), NewMessage(type="export", payload="ada"))
        found = json.loads(run("list", "dead", "--type", "send_mail", "--search", "ada", "--json").stdout)
        assert [message["type"] for message in found["messages"]] == ["send_mail"]
        assert run("list", "dead", "--priority", "3").stdout.startswith("no messages\n")

    def test_an_id_can_be_copied_from_a_narrow_terminal(self, queue: MessageQueue) -> None:
        id = queue.enqueue("send_mail")
        assert id in run("list", columns=80).stdout

    def test_a_narrow_terminal_gets_whole_words_and_the_reason_of_a_failure(self, queue: MessageQueue) -> None:
        id = bury(queue, NewMessage(type="mail.reminder"))[0]
        lines = run("list", "dead", columns=80).stdout.splitlines()
        (row,) = [line for line in lines if line.startswith(id)]
        assert row.split()[1] == "mail.reminder"
        assert "the mail server" in row
        assert "not shown, because the terminal is too narrow: priority, attempts, payload" in lines

    def test_json_has_each_payload_byte_for_byte(self, queue: MessageQueue) -> None:
        queue.enqueue("send_mail", NASTY)
        assert f'"payload":{NASTY}}}],"cursor":' in run("list", "--json").stdout

    @pytest.mark.parametrize("arguments", [["nowhere"], ["--cursor", "x"], ["--limit", "0"], ["--type", "\udcff"]])
    def test_invalid_arguments_are_refused(self, arguments: list[str], clean: Servers) -> None:
        result = run("list", *arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert "Traceback" not in result.stderr


class TestShow:
    def test_show_prints_all_of_a_message_in_any_state(self, queue: MessageQueue) -> None:
        (id,) = bury(queue, NewMessage(type="send_mail", payload=NASTY, max_attempts=7))
        shown = run("show", id).stdout
        assert shown.startswith(f"{'state':<22}failed (dead)\n")
        for name, value in (("id", id), ("custom_max_attempts", "7"), ("last_error", "the mail server is unavailable")):
            assert f"{name:<22}{value}\n" in shown
        assert '    "big": 12345678901234567890.10,\n' in shown
        assert "UTC  dead-lettered  the mail server is unavailable\n" in shown
        printed = run("show", id, "--json").stdout
        assert f'"payload":{NASTY},"state": "dead", "events": [' in printed
        assert json.loads(printed)["events"][-1]["reason"] == "the mail server is unavailable"

    def test_unknown_id_is_one_line(self, clean: Servers) -> None:
        result = run("show", "no-such")
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == "queue-manager: There is no message no-such\n"


class TestTransfer:
    def test_export_is_imported(self, queue: MessageQueue, tmp_path: Path) -> None:
        (id,) = bury(queue, NewMessage(type="send_mail", payload=NASTY))
        exported = run("export", "dead", "--type", "send_mail").stdout
        assert json.loads(exported)["id"] == id
        assert run("export", "main").stdout == ""
        queue_admin().delete([id])
        (tmp_path / "dead.jsonl").write_text(exported)

        for counts in ("1 imported, 0 already present", "0 imported, 1 already present"):
            assert run("import", str(tmp_path / "dead.jsonl")).stdout == f"{counts}, 0 undecodable\n"
        message = queue.dequeue()
        assert message is not None
        assert (message.id, message.attempt, message.payload_json) == (id, 1, NASTY)

    def test_invalid_lines_are_named_and_the_others_imported(self, queue: MessageQueue, tmp_path: Path) -> None:
        (tmp_path / "broken.jsonl").write_text('{"type":"mail"}\nnonsense\n{"type":"a\\u0085"}\n\n{"type":"sms"}\n')
        result = run("import", str(tmp_path / "broken.jsonl"))
        assert (result.returncode, result.stdout) == (1, "2 imported, 0 already present, 0 undecodable\n")
        assert [line.split(": must")[0] for line in result.stderr.splitlines()] == [
            "queue-manager: line 2: body",
            "line 3: type",
        ]
        assert [message.type for message in queue.receive_many(10)] == ["mail", "sms"]

    def test_list_that_is_not_json_is_not_imported(self, queue: MessageQueue, tmp_path: Path) -> None:
        (tmp_path / "broken.json").write_text('[{"type":"mail"},')
        result = run("import", str(tmp_path / "broken.json"))
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("queue-manager: body: must be a JSON list")


@pytest.mark.processes
class TestTerminal:
    def test_text_of_a_producer_cannot_send_escape_sequences(self, queue: MessageQueue, clean: Servers) -> None:
        id = queue.enqueue("[red]type[/]", NASTY)
        with Redis.from_url(clean.valkey.url) as client:
            client.xadd("queue", {"data": '{"id":"foreign","type":"\\u001b[2J","payload":1}'})
        for arguments in (["list"], ["show", id]):
            for said in (run(*arguments).stdout, on_a_terminal(*arguments)):
                assert "[red]" in said
                assert not {"\x9b", "\x7f", "\u202e"} & set(said)
                assert "\x1b[2J" not in said
                assert "\x1b[31m" not in said

    def test_colours_are_for_a_terminal_alone(self, queue: MessageQueue) -> None:
        queue.enqueue("send_mail")
        assert "\x1b[" not in run("list").stdout
        assert "\x1b[" in on_a_terminal("list")

    def test_json_on_a_terminal_is_the_same_value(self, queue: MessageQueue) -> None:
        id = queue.enqueue("send_mail", NASTY)
        said = on_a_terminal("show", id, "--json")
        assert json.loads(said)["payload"] == json.loads(NASTY)
        assert not {"\x9b", "\x7f", "\u202e"} & set(said)


class TestReplay:
    def test_replay_asks_for_confirmation(self, queue: MessageQueue) -> None:
        ids = bury(queue, NewMessage(type="send_mail"), NewMessage(type="send_mail"))
        for answer in ("n\n", ""):
            refused = run("replay", "--all", answer=answer)
            assert refused.returncode == 1
            assert "Replay 2 dead letters? [y/N]" in refused.stdout
            assert refused.stderr == "queue-manager: nothing was changed: use --yes to confirm without a terminal\n"
        assert queue_admin().counts().dead == 2
        assert run("replay", *ids, answer="y\n").returncode == 0
        assert queue_admin().counts().main == 2

    def test_matching_dead_letters_are_replayed_in_order(self, queue: MessageQueue) -> None:
        mails = bury(queue, *(NewMessage(type="send_mail") for _ in range(250)))
        (export,) = bury(queue, NewMessage(type="export"))
        result = run("replay", "--all", "--type", "send_mail", "--yes")
        assert result.stdout.splitlines()[-1] == "250 of 250 replayed"
        assert [queue.dequeue().id for _ in mails] == mails  # type: ignore[union-attr]
        assert [message.id for message in queue_admin().list("dead").messages] == [export]

    def test_each_message_has_a_result_and_one_failure_sets_the_exit_code(self, queue: MessageQueue) -> None:
        (id,) = bury(queue, NewMessage(type="send_mail"))
        result = run("replay", id, "gone", "--yes")
        assert result.returncode == 1
        assert result.stdout.splitlines() == [
            f"{id}  replayed",
            "gone  not replayed: there is no such dead letter",
            "1 of 2 replayed",
        ]

    @pytest.mark.parametrize("arguments", [[], ["one", "--all"], ["one", "--type", "send_mail"]])
    def test_ids_or_all_must_be_given(self, arguments: list[str]) -> None:
        result = run("replay", *arguments)
        assert result.returncode == 2
        assert result.stderr.startswith("queue-manager: give ids of dead letters, or --all")

    def test_nothing_to_replay_is_not_a_failure(self, clean: Servers) -> None:
        result = run("replay", "--all")
        assert (result.returncode, result.stdout) == (0, "no dead letters to replay\n")


class TestRequeue:
    def test_requeue_requeues_overdue_messages_and_prints_them(self, queue: MessageQueue) -> None:
        back = queue.enqueue("send_mail")
        dead = queue.enqueue("send_mail", max_attempts=1)
        for _ in range(2):
            queue.dequeue(ack_timeout=0.001)
        eventually(lambda: queue_admin().counts().overdue == 2)
        result = run("requeue")
        assert result.returncode == 0
        assert json.loads(result.stdout) == {"requeued": 1, "dead_lettered": 1, "ids": [back], "dlq_ids": [dead]}
        reason = "Max attempts exceeded (Stream): not acknowledged in time"
        assert reason in run("list", "dead").stdout

    @pytest.mark.processes
    def test_a_message_that_used_all_its_attempts_is_among_the_failures(self, queue: MessageQueue) -> None:
        bury(queue, NewMessage(type="send_mail"))
        assert "the mail server is unavailable" in queue_manager("failures", QM_MESSAGE_QUEUE="true").stdout

    def test_lock_of_another_sweeper_is_reported(self, clean: Servers) -> None:
        with Redis.from_url(clean.valkey.url) as client:
            client.set("queue:overdue_requeue_lock", 1, px=seconds(30))
        result = run("requeue")
        assert result.returncode == 1
        assert result.stderr.startswith("queue-manager: another sweep is running")


@pytest.mark.processes
@pytest.mark.parametrize("arguments", [["list"], ["show", "x"], ["replay", "x", "--yes"], ["requeue"]])
@pytest.mark.usefixtures("clean")
def test_an_unavailable_server_is_reported_in_one_clear_line(arguments: list[str]) -> None:
    port = free_port()
    result = queue_manager("queue", *arguments, REDIS_URL=f"redis://:s3cret@127.0.0.1:{port}/0")
    assert result.returncode == 1
    server = f"The queue's server at redis://***@127.0.0.1:{port}/0"
    assert result.stderr.startswith(f"queue-manager: {server} does not answer (Error")
    assert result.stderr.count("\n") == 1
    assert "s3cret" not in result.stderr


def test_indented_json_keeps_numbers_as_written() -> None:
    assert indent_json('{"a":1.50,"b":[],"c":[{"d":"x, {y}"} ,2]}') == (
        '{\n  "a": 1.50,\n  "b": [],\n  "c": [\n    {\n      "d": "x, {y}"\n    },\n    2\n  ]\n}'
    )


def test_control_characters_are_escaped_for_a_terminal() -> None:
    assert printable("é \x1b[2J\x9b\n\u202e[red]") == "é \\x1b[2J\\x9b\\n\\u202e[red]"


@pytest.mark.processes
def test_the_documented_commands_move_the_messages_to_another_server(
    queue: MessageQueue, clean: Servers, tmp_path: Path
) -> None:
    (dead,) = bury(queue, NewMessage(type="mail"))
    held, *waiting = (one.id for one in queue.enqueue_batch([NewMessage(type="mail") for _ in range(3)]))
    assert [message.id for message in queue.receive_many(1)] == [held]
    elsewhere = clean.valkey.url.removesuffix("/0") + "/1"
    commands = block(0, heading="Several Redis servers", page=DOCS / "how-to" / "scale.md")

    def exported(state: str, url: str) -> list[str]:
        found = queue_manager("queue", "export", state, QM_QUEUE_REDIS_URL=url).stdout
        return [json.loads(line)["id"] for line in found.splitlines()]

    with Redis.from_url(elsewhere) as client:
        client.flushdb()
        done = subprocess.run(
            ["bash", "-ec", replaced(commands, {"redis://queue.internal:6379/0": elsewhere})],
            env=environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert exported("main", elsewhere) == [held, *waiting]
        assert exported("dead", elsewhere) == []
        client.flushdb()
    assert json.loads((tmp_path / "dead.jsonl").read_text())["id"] == dead
