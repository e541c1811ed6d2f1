"""Functions of users: a call that returns a coroutine or a generator did nothing and is refused."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest

from queue_manager.core.errors import FunctionExited, PermanentError
from queue_manager.core.functions import contained, is_plain, require_done, takes_one
from tests.e2e.commands import handling_sigint


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def both() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [coroutine, generator, both])
def test_coroutine_and_generator_functions_are_not_plain(function: object) -> None:
    assert not is_plain(function)
    assert is_plain(lambda: None)
    assert is_plain(partial(print, "x"))
    assert not is_plain(None)


@pytest.mark.parametrize("function", [coroutine, generator, both])
def test_result_of_a_coroutine_or_generator_function_is_refused(function: type) -> None:
    with pytest.raises(
        PermanentError, match=r"^The job returned a \w+, so nothing was done: it must be a plain function$"
    ):
        require_done(function(), "The job")


@pytest.mark.parametrize("result", [None, 5, {}, [1], "text"])
def test_any_other_result_is_returned(result: object) -> None:
    assert require_done(result, "The job") is result


@pytest.mark.parametrize(("takes", "function"), [(True, print), (True, lambda one: one), (False, lambda: None)])
def test_functions_that_accept_one_argument_are_recognized(takes: bool, function: Callable[..., object]) -> None:
    assert takes_one(function) is takes


@pytest.fixture
def interrupts_ignored() -> Iterator[None]:
    """Ignore SIGINT, as a child process of a worker does."""
    with handling_sigint(signal.SIG_IGN):
        yield


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(4), "SystemExit: 4"),
        (KeyboardInterrupt("stop"), "KeyboardInterrupt: stop"),
        (GeneratorExit(), "GeneratorExit"),
    ],
    ids=["exit", "interrupt", "generator"],
)
def test_an_error_that_would_end_the_process_fails_the_attempt(
    error: BaseException, text: str, interrupts_ignored: None
) -> None:
    with pytest.raises(FunctionExited) as raised, contained():
        raise error
    assert (str(raised.value), raised.value.__cause__) == (text, error)


def test_ctrl_c_ends_a_command() -> None:
    with handling_sigint(signal.default_int_handler), pytest.raises(KeyboardInterrupt), contained():
        signal.raise_signal(signal.SIGINT)


def test_other_errors_and_the_end_of_the_process_are_raised_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError, match="x"), contained():
        raise KeyError("x")
    monkeypatch.setattr("billiard.common._should_have_exited", [True])
    with pytest.raises(SystemExit), contained():
        sys.exit(1)


@pytest.mark.parametrize(
    ("end", "status"),
    [(lambda: None, 0), (lambda: sys.exit(7), 7), (lambda: 1 / 0, 1)],
    ids=["returns", "exits", "fails"],
)
def test_a_process_that_a_function_forked_ends_with_it(end: Callable[[], object], status: int) -> None:
    with contained():
        if (child := os.fork()) == 0:
            end()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
