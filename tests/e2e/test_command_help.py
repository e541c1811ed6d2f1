"""The help of `queue-manager`, its suggestions and its tables."""

from __future__ import annotations

import pytest
import typer

from queue_manager.cli.commands import cli
from tests.e2e.commands import invoke, queue_manager
from tests.real_servers import Servers

GROUPS = [name for name, one in typer.main.get_group(cli).commands.items() if hasattr(one, "commands")]


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_the_help_of_a_group_has_each_command_in_one_line(group: str) -> None:
    shown = invoke(*group.split(), "--help", columns=80).stdout
    *_, listed = shown.partition("\nCommands:\n")
    assert listed.strip()
    assert "..." not in listed
    assert "<bool>" not in shown


def test_paragraphs_of_a_help_text_are_wrapped() -> None:
    text = invoke("items", "retry", "--help", columns=80).stdout
    (paragraph,) = (one for one in text.split("\n\n") if one.startswith("  At most 1,000"))
    *lines, _ = paragraph.splitlines()
    assert len(lines) == 2
    assert all(60 < len(line) <= 80 for line in lines)


def test_a_table_names_the_columns_that_do_not_fit(clean: Servers) -> None:
    shown = invoke("systems", "list", columns=40).stdout
    assert "support-snooze    on     10 s" in shown
    assert "not shown, because the terminal is too narrow: queue, page" in shown


def test_a_width_that_is_not_above_0_is_ignored(clean: Servers) -> None:
    unset = queue_manager("systems", "list", COLUMNS="").stdout
    assert "support-snooze" in unset
    assert {queue_manager("systems", "list", COLUMNS=wrong).stdout for wrong in ("0", "-1", "wide")} == {unset}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["queue", "list", "daed"], "Invalid value for 'STATE': 'daed' is not one of 'main', "),
        (["items", "list", "support-snooze", "faild"], "'faild' is not one of 'due', "),
        (["audit", "--action", "look"], "'look' is not one of "),
        (["alerts", "silence", "beat", "nothing-like-it"], "'nothing-like-it' is not one of "),
        (["queue", "list", "--limit", "x"], "Invalid value for '--limit': "),
    ],
)
def test_value_that_is_not_allowed_is_refused_in_one_sentence(arguments: list[str], error: str) -> None:
    result = invoke(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    said = " ".join(result.stderr.replace("│", " ").split())
    assert error in said
    assert "Value error" not in said


NOT_UTF_8 = "caf\udce9"
"""An argument in Latin-1, as Python reads it."""


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["mark", NOT_UTF_8], "an argument is not valid UTF-8"),
        *((["mark", text], "the text must have 1 to 200 characters") for text in ("", "x" * 201)),
        (["alerts", "unsilence", NOT_UTF_8, "lag"], "an argument is not valid UTF-8"),
        *((["audit", option, NOT_UTF_8], "an argument is not valid UTF-8") for option in ("--who", "--id", "--system")),
        (["alerts", "silence", "support-snooze", "lag", "--reason", NOT_UTF_8], "an argument is not valid UTF-8"),
        (
            ["alerts", "silence", "support-snooze", "lag", "--reason", "x" * 501],
            "--reason: must have at most 500 characters",
        ),
    ],
)
def test_an_argument_that_cannot_be_stored_is_refused_in_one_line(
    arguments: list[str], error: str, clean: Servers
) -> None:
    result = invoke(*arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"queue-manager: {error}\n")
