"""Functions of users: a call that returned a coroutine or a generator has done nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from queue_manager.core.errors import PermanentError
from queue_manager.core.functions import is_plain, require_done


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def both() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [coroutine, generator, both])
def test_what_does_nothing_when_it_is_called_is_not_plain(function: object) -> None:
    assert not is_plain(function)
    assert is_plain(lambda: None)
    assert is_plain(partial(print, "x"))
    assert not is_plain(None)


@pytest.mark.parametrize("function", [coroutine, generator, both])
def test_its_result_is_refused(function: type) -> None:
    with pytest.raises(
        PermanentError, match=r"^The job returned a \w+, so nothing was done: it must be a plain function$"
    ):
        require_done(function(), "The job")


@pytest.mark.parametrize("result", [None, 5, {}, [1], "text"])
def test_any_other_result_is_returned(result: object) -> None:
    assert require_done(result, "The job") is result
