"""When a task of a batch may complete without Celery's tracer, and that its result is formatted alike."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery, signals
from celery.exceptions import Retry
from celery.utils.saferepr import saferepr

from queue_manager.batching import execution
from tasks.item import ItemTask


class Odd:
    def __repr__(self) -> str:
        raise ValueError("cannot be shown")


def task(**members: Any) -> Any:
    app = Celery("endings", set_as_current=False)
    app.conf.task_ignore_result = True
    kind = type("Kind", (ItemTask,), {"abstract": True, "queue_name": "endings", **members})
    return app.task(base=kind, name="endings.one", shared=False)(_do)


def _do() -> None:
    """Does nothing."""


def receive(*_: Any, **__: Any) -> None:
    """Do nothing: only its presence matters."""


def test_plain_task_has_no_listeners() -> None:
    assert not execution.has_listeners(task())


@pytest.mark.parametrize("hook", ["__call__", "on_success", "before_start", "after_return"])
def test_task_with_its_own_hook_has_listeners(hook: str) -> None:
    assert execution.has_listeners(task(**{hook: receive}))


@pytest.mark.parametrize("signal", execution.TASK_SIGNALS, ids=lambda signal: signal.name)
def test_task_has_listeners_if_a_signal_receiver_is_connected(signal: signals.Signal) -> None:
    signal.connect(receive)
    try:
        assert execution.has_listeners(task())
    finally:
        signal.disconnect(receive)


@pytest.mark.parametrize("follower", execution.FOLLOW_UPS)
def test_task_with_a_follow_up_is_not_final(follower: str) -> None:
    nothing = dict.fromkeys((*execution.FOLLOW_UPS, "errbacks"))
    assert execution.is_final(task(), {}, nothing)
    assert not execution.is_final(task(), {}, {**nothing, follower: [{"task": "next"}]})


def test_task_whose_result_is_stored_is_not_final() -> None:
    assert not execution.is_final(task(), {"ignore_result": False}, {})
    assert not execution.is_final(task(ignore_result=False), {}, {})
    assert execution.is_final(task(ignore_result=False), {"ignore_result": True}, {})


@pytest.mark.parametrize(
    "result",
    [
        None,
        "text",
        "lines\nof it",
        {"success": True, "at": "2026"},
        {"long": "x" * 2_000},
        ["y"] * 2_000,
        {"odd": Odd()},
    ],
)
def test_result_is_formatted_as_celery_formats_it(result: Any) -> None:
    one = task()
    assert execution._shown(result, one.resultrepr_maxsize) == saferepr(result, one.resultrepr_maxsize)


def test_exception_raised_within_celery_fails_the_task() -> None:
    def raising() -> Any:
        raise TypeError("its body is none")

    has_failed, error, seconds = execution.traced(raising, 0.5)
    assert (has_failed, seconds) == (1, 0.5)
    assert isinstance(error.exception, TypeError) or "its body is none" in str(error.exception)


def test_errors_of_a_batch_are_reported_without_their_frames() -> None:
    document = bytearray(1_000_000)

    def fail(depth: int, held: bytearray) -> None:
        if depth:
            fail(depth - 1, held)
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None

    def trace() -> tuple[int, Any, float | None]:
        try:
            try:
                fail(50, document)
            except ValueError as error:
                raise Retry("again", error, 1) from error
        except Retry:
            return 1, ExceptionInfo(), 0.0
        raise AssertionError("nothing failed")

    held = sys.getrefcount(document)
    failed, info, _ = execution.traced(trace, 0.0)
    assert failed == 1
    assert sys.getrefcount(document) == held
    sent: ExceptionInfo = pickle.loads(pickle.dumps(info))
    assert len(pickle.dumps(info)) < 2 * len(info.traceback) + 1_000  # the exception has it, too
    assert sent.traceback == info.traceback
    assert "ValueError: second" in sent.traceback
    assert isinstance(sent.exception, Retry)
    assert isinstance(sent.exception.exc, ValueError)
