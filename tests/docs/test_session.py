"""What a reader who follows a page notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.site.markdown import Block
from tests.docs.session import Session


@pytest.mark.parametrize("marker", ["", "run: the output differs"])
def test_a_command_without_shown_output_must_succeed(marker: str, tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        session.execute(Block("console", "$ true\n$ echo anything\n", marker, 1))
        with pytest.raises(AssertionError, match=r"\$ false"):
            session.execute(Block("console", "$ true\n$ false\n$ true\n", marker, 1))


def test_every_command_of_a_script_must_succeed(tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        session.execute(Block("bash", "true\n", "", 1))
        with pytest.raises(AssertionError, match=r"^false"):
            session.execute(Block("bash", "false\ntrue\n", "", 1))


def test_a_command_may_fail_if_its_output_is_the_one_that_is_shown(tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        session.execute(Block("console", "$ echo away && false\naway\n", "", 1))
        with pytest.raises(AssertionError, match=r"\$ echo away"):
            session.execute(Block("console", "$ echo away\nhere\n", "", 1))


def test_a_program_in_the_background_must_stay_alive(tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        session.execute(Block("bash", "sleep 600 &\nsleep 601 &\n", "", 1))
        session.check_background()
        session.execute(Block("bash", "kill -9 %1; wait %1 || true\n", "", 1))
        with pytest.raises(AssertionError, match=r"^\['sleep 600'\]"):
            session.check_background()


def test_a_worker_in_the_background_must_become_ready(tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        with pytest.raises(AssertionError, match="celery -A tasks worker"):
            session.execute(Block("console", "$ export REDIS_URL=nowhere\n$ celery -A tasks worker &\n", "", 1))
    assert "REDIS_URL" in session.logs()
