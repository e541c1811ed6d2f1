"""Every code block and command of the documentation is executed, here or by the test that its marker names.

A marker is an HTML comment on the line before a block:

- none: the block is executed with the others of its page, in their order. Python with a path in its first line, such as
  `# billing/trial_end.py`, is written to that file.
- `file: PATH`: Python that is written to a file.
- `run: the output differs`: the commands are executed, and their output is not compared.
- `run: until it is so`: each command is repeated until its output is the one shown.
- `tested by: tests/PATH.py::NAME`: this test executes it.
- `shows: WHAT`: it is no command and no file, but a drawing or a signature.
- `not run: REASON`: it is not executed.

A comment `setup:` with commands on its own lines is executed at its place; readers do not see it.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from dev.site.markdown import Block, blocks
from tests.docs.session import Session
from tests.real_servers import Servers

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for name in ("benchmarks", "clients", "deploy", "docs") for page in sorted((ROOT / name).rglob("*.md"))),
]
PAGES = [page for page in PAGES if "node_modules" not in page.parts]
EXECUTABLE = {"python", "bash", "sh", "console", "js", "ts"}
SHOWN = {"text", "json", "yaml", "toml", "ini", "nginx", "caddyfile", "dockerfile", "systemd"}
DRAWN = "mermaid"  # by the site
MARKER = re.compile(r"(file|run|tested by|shows|not run): (.+)")
WRITTEN_BY_A_PROGRAM = {"docs/reference/python-client.md": "tests/client/test_descriptions.py"}
RUN = {"the output differs", "until it is so"}
MAX_NOT_RUN = 8
SMOKE = "dead-letters.md"  # starts no process that stays
SETUP = re.compile(r"^<!-- setup:\n(.*?)^-->\n", re.MULTILINE | re.DOTALL)


def all_of(page: Path) -> list[Block]:
    """Return the blocks and the setups of a page, in their order."""
    text = page.read_text()
    setups = [
        Block("bash", "", f"setup:{found[1]}", text.count("\n", 0, found.start()) + 1) for found in SETUP.finditer(text)
    ]
    return sorted([*blocks(text), *setups], key=lambda block: block.line)


def is_executed(block: Block) -> bool:
    kind = block.marker.partition(":")[0]
    return kind == "setup" or (is_executable(block) and kind in ("", "file", "run"))


def is_executable(block: Block) -> bool:
    return block.is_session or block.language in EXECUTABLE


CASES = [(page, block) for page in PAGES for block in all_of(page)]
FOLLOWED = [
    pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.smoke] if page.name == SMOKE else [])
    for page in PAGES
    if any(is_executed(block) for block in all_of(page))
]


def test_every_block_has_a_language_and_a_way_it_is_tested() -> None:
    for page, block in CASES:
        where = f"{page.relative_to(ROOT)}:{block.line}"
        is_named = is_executable(block) or block.language in {*SHOWN, DRAWN}
        assert is_named, f"{where}: name a language in the opening fence"
        kind, _, value = block.marker.partition(": ")
        if kind == "tested by":
            path, _, name = value.partition("::")
            assert name in functions_of_module(path), f"{where}: {value}"
            assert page.name in text_of_module(path), f"{path} does not read {page.name}"
        elif block.marker and not kind.startswith("setup:"):
            assert MARKER.fullmatch(block.marker), f"{where}: {block.marker}"
            assert kind != "run" or value in RUN, f"{where}: {block.marker}"
            is_shown = kind != "shows" or block.language in SHOWN
            assert is_shown, f"{where}: a command or a program cannot just be shown"
        is_run_here = is_executed(block) and block.language not in ("js", "ts")
        is_written = str(page.relative_to(ROOT)) in WRITTEN_BY_A_PROGRAM or block.language == DRAWN
        is_tested = is_run_here or is_written or kind in ("tested by", "shows", "not run")
        assert is_tested, f"{where}: say which test executes it"


@cache
def functions_of_module(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@cache
def text_of_module(path: str) -> str:
    """Return the text of a module of the tests, of the fixtures next to it, and of the modules that they import."""
    found, to_read = dict[str, str](), [path, f"{path.rpartition('/')[0]}/conftest.py"]
    while to_read:
        path = to_read.pop()
        if path not in found and (ROOT / path).exists():
            found[path] = (ROOT / path).read_text()
            imported = re.findall(r"^from (tests\.[\w.]+) import", found[path], re.MULTILINE)
            to_read += [f"{name.replace('.', '/')}.py" for name in imported]
    return "\n".join(found.values())


def test_every_fence_belongs_to_a_block() -> None:
    for page in PAGES:
        text = page.read_text()
        assert len(re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE)) == 2 * len([*blocks(text)]), page


def test_generated_pages_are_up_to_date() -> None:
    for page, test in WRITTEN_BY_A_PROGRAM.items():
        assert "assert PAGE.read_text() == reference()" in (ROOT / test).read_text(), page


def test_few_blocks_are_not_run() -> None:
    not_run = [f"{page.name}:{block.line}" for page, block in CASES if block.marker.startswith("not run")]
    assert len(not_run) <= MAX_NOT_RUN, not_run


@pytest.mark.processes
@pytest.mark.parametrize("page", FOLLOWED)
def test_a_reader_can_follow_the_page(page: Path, clean: Servers, tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        for block in all_of(page):
            if is_executed(block):
                try:
                    session.execute(block)
                    session.check_background()
                except AssertionError as error:
                    raise AssertionError(f"{page.relative_to(ROOT)}:{block.line}\n{error}\n{session.logs()}") from None
