"""The documentation: every relative link leads to a file, every anchor to a heading, every command is described."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from functools import cache, reduce
from inspect import getdoc
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer

import queue_manager
from queue_manager.cli.commands import cli
from services.job_queues import Jobs
from services.message_queue import AsyncMessageQueue, MessageQueue

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PUBLIC_MODULES = ("queue_manager", "queue_manager.client")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
METRIC = re.compile(r"`(queue_manager_[a-z_]+)")
NOT_IN_CI = {  # each takes longer than 20 s, also on a free machine
    "test_an_outage_is_one_line_of_each_component",
    "test_every_process_continues_with_the_new_primary",
    "test_jobs_survive_the_loss_of_the_primary",
    "test_all_processes_follow_the_address_to_the_new_primary",
    "test_work_continues_with_the_new_primary",
    "test_messages_continue_when_the_node_of_the_queue_dies",
    "test_rooms_open_after_rabbitmq_was_killed_and_came_back",  # needs RabbitMQ
    "test_neighbours_of_a_hanging_item_are_executed_after_one_lease",
    "test_items_are_executed_by_a_worker_that_reaches_mongodb",
    "test_all_work_is_executed_once_during_an_upgrade",  # installs two releases
}
"""Tests of the failures that only `make test-all` simulates."""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


def links(page: Path) -> list[str]:
    text = CODE.sub("", page.read_text())
    found = [in_markdown or in_html for in_markdown, in_html in LINK.findall(text)]
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(CODE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_relative_link_resolves() -> None:
    for page in PAGES:
        for link in links(page):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page}: {link}"
            assert not anchor or anchor in anchors(target), f"{page}: {link}"


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in links(index)}
    assert set((ROOT / "docs").rglob("*.md")) - linked == {index}


def named_in_rows(page: str, begins: str) -> list[list[tuple[str, str]]]:
    """Return the tests that each row of a page's tables names: name and path."""
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    rows = [row for table in tables if table.startswith(begins) for row in table.splitlines()[2:]]
    assert rows
    return [re.findall(r"\[(test_\w+)\]\(\.\./\.\./(tests/\S+\.py)\)", row) for row in rows]


@pytest.mark.parametrize(
    ("page", "begins"), [("explanation/failures.md", "| failure"), ("reference/dashboard.md", "| task")]
)
def test_each_row_names_an_existing_test(page: str, begins: str) -> None:
    for named in named_in_rows(page, begins):
        assert named
        for name, path in named:
            assert f"def {name}(" in (ROOT / path).read_text(), name


def is_run_by_ci(name: str, path: str) -> bool:
    """Return True if `make test`, `make test-slow` or `make test-smoke` runs a test, or one of its parameters."""
    tree = ast.parse((ROOT / path).read_text())
    test = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)
    of_module = [node for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    marks = set(re.findall(r"mark\.(\w+)", "\n".join(map(ast.unparse, [*of_module, *test.decorator_list]))))
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    deselected = set(re.findall(r"\w+", options.partition("not (")[2].partition(")")[0])) - {"or"}
    return not marks & deselected or bool(marks & {"slow", "smoke"})


def test_ci_simulates_each_failure_unless_that_takes_too_long() -> None:
    rows = named_in_rows("explanation/failures.md", "| failure")
    without = {name for row in rows if not any(is_run_by_ci(*test) for test in row) for name, _ in row}
    assert without == NOT_IN_CI


def test_messages_of_errors_in_troubleshooting_are_those_of_the_program() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"^\| `([^`]*…[^`]*)` \|", text, re.MULTILINE)
    assert messages
    sources = [path.read_text() for name in ("queue_manager", "models") for path in (ROOT / name).rglob("*.py")]
    for message in messages:
        for part in filter(None, map(str.strip, message.split("…"))):
            assert any(part in source for source in sources), part


def test_metrics_that_pages_name_exist() -> None:
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    named = {name for page in PAGES if page.name != "CHANGELOG.md" for name in METRIC.findall(page.read_text())}
    assert named
    assert {name for name in named if f"`{name}" not in reference} == set()


def test_rates_of_sizing_are_those_of_the_benchmarks() -> None:
    _, *sections = re.split(r"^## ", (ROOT / "benchmarks/results.md").read_text(), flags=re.MULTILINE)
    by_anchor = {re.sub(r"[^\w-]", "", one.partition("\n")[0].lower().replace(" ", "-")): one for one in sections}
    _, _, table = (ROOT / "docs" / "explanation" / "sizing.md").read_text().partition("## Measured rates\n")
    rows = [line for line in table.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    rate = r"(\d[\d,]*) (?:per second|ms)"
    shown = re.findall(rf"{rate}(?:[^\[\]|]*\]\([^)#]*#([\w-]+)\))?", "\n".join(rows))
    assert len(shown) >= len(rows)
    section = ""
    for number, anchor in shown:  # one without a link is in the section of the link before
        section = by_anchor[anchor] if anchor else section
        digits = len(number.replace(",", "").rstrip("0"))
        rounded = {f"{float(one.replace(',', '')):.{digits - 1}e}" for one in NUMBER.findall(section)}
        assert f"{float(number.replace(',', '')):.{digits - 1}e}" in rounded, number


def commands(command: Any, path: str) -> list[str]:
    below = getattr(command, "commands", {})
    return [path] if not below else [name for one in below for name in commands(below[one], f"{path} {one}")]


def test_the_reference_lists_every_command_with_its_options() -> None:
    reference = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    rows = dict(re.findall(r"^\| `(queue-manager(?: [a-z-]+)+)(.*)", reference, flags=re.MULTILINE))
    root: Any = typer.main.get_command(cli)
    assert {*commands(root, "queue-manager")} - {*rows} == set()
    filters = re.search(r"Filters: ([^.]+)", rows["queue-manager queue list"])
    assert filters
    for path, row in rows.items():
        command = reduce(lambda group, word: group.commands[word], path.split()[1:], root)
        options = [{*one.opts} for one in command.params if one.param_type_name == "option" and not one.hidden]
        named = {*re.findall(r"(?<![\w-])--[a-z-]+", re.sub("filters (as for|of) `queue list`", filters[1], row))}
        assert [names for names in options if not names & named] == [], path
        assert named - {*chain(*options)} == set(), path


def test_examples_import_only_public_names() -> None:
    for page in PAGES:
        code = "\n".join(CODE.findall(page.read_text()))
        for module, names in re.findall(r"^from ([\w.]+) import (.+)$", code, re.MULTILINE):
            package = module.partition(".")[0]
            assert package not in ("services", "models", "dev"), f"{page}: {module}"
            if package == "queue_manager":
                assert module in PUBLIC_MODULES, page
                public = importlib.import_module(module)
                assert [name for name in names.split(", ") if not hasattr(public, name)] == [], page


def test_errors_of_the_documented_methods_are_public_and_documented() -> None:
    for kinds, page, call in (
        ((Jobs,), "job-queues.md", r"`jobs\.(\w+)\("),
        ((MessageQueue, AsyncMessageQueue), "message-queue.md", r"`queue\.(\w+)\("),
    ):
        text = (ROOT / "docs" / "how-to" / page).read_text()
        methods = [getattr(kind, name) for name in set(re.findall(call, text)) for kind in kinds if hasattr(kind, name)]
        raised = {
            error
            for method in methods
            for errors in re.findall(r"Raises:?\s(.*?)(?:\n\n|\Z)", method.__doc__, re.DOTALL)
            for error in re.findall(r"\b[A-Z]\w*[a-z][A-Z]\w+", errors)
        }
        assert len(raised) > 3
        assert raised - {*queue_manager.__all__} == set()
        assert [error for error in raised if f"`{error}`" not in text] == []


def test_editors_show_a_text_for_each_public_name() -> None:
    public = {name: getattr(queue_manager, name) for name in queue_manager.__all__}
    assert [name for name, what in public.items() if not getdoc(what)] == []
