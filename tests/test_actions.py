"""Every operation of the HTTP API has a command, or a reason why not: `docs/reference/actions.md`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import typer

from dev.api_description import api_description
from queue_manager.cli.commands import cli
from tests.test_docs import commands

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "actions.md"
ROUTE = re.compile(r"`((?:GET|POST|PUT|PATCH|DELETE) /[^`]*)`")
COMMAND = re.compile(r"`(queue-manager [^`]*)`")
ACTIONS, WITHOUT_COMMAND = PAGE.read_text().partition("## Commands without")[0].split("## Routes without a command")


def rows(text: str) -> list[list[str]]:
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [cells for cells in lines if any(map(ROUTE.search, cells))]


def documented(text: str) -> list[str]:
    return [route for cells in rows(text) for cell in cells for route in ROUTE.findall(cell)]


def test_every_operation_is_named_once() -> None:
    paths = api_description()["paths"]
    operations = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    named = documented(ACTIONS) + documented(WITHOUT_COMMAND)
    assert sorted(named) == sorted(operations)


def test_every_action_has_a_command_and_every_exception_a_reason() -> None:
    assert [cells for cells in rows(ACTIONS) if not COMMAND.search(cells[-1])] == []
    assert [cells for cells in rows(WITHOUT_COMMAND) if len(cells[-1].split()) < 5] == []


@cache
def program() -> Any:
    return typer.main.get_command(cli)


def command_of(line: str) -> tuple[Any, list[str]]:
    """Return the command that a line names, and the rest of the line."""
    command, words = program(), line.split()[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    return command, words


def test_help_of_a_command_with_parameters_has_an_example_that_fits() -> None:
    lines = [*commands(program(), "queue-manager")]
    assert len(lines) > 50
    for line in lines:
        command, _ = command_of(line)
        examples = re.findall(r"`(queue-manager [^`]*)`", " ".join((command.help or "").split()))
        fitting = [example for example in examples if example.startswith(line)]
        options = {name for parameter in command.params for name in parameter.opts}
        given = {word for example in fitting for word in example.split() if re.fullmatch("--[a-z-]+", word)}
        assert fitting or not command.params, line
        assert given <= options, line


def test_command_and_its_options_exist() -> None:
    lines = sorted(set(COMMAND.findall(PAGE.read_text())))
    assert len(lines) > 20
    for line in lines:
        command, words = command_of(line)
        options = {name for parameter in command.params for name in parameter.opts}
        given = {word for word in words if word.startswith("--")}
        assert given <= options, line
        assert words[:1] == [] or words[0].startswith("--") or words[0].isupper(), f"{line}: no such command"
