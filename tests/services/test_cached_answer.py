"""An answer that is expensive to compute is cached, and computed by one thread at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from queue_manager.core import cached_answer
from queue_manager.core.cached_answer import MAX_FRESH_COUNT, CachedAnswer, cached_count


def test_while_one_thread_computes_an_answer_others_get_the_previous_one() -> None:
    began, may_end, calls = Event(), Event(), list[int]()

    def compute() -> int:
        calls.append(len(calls))
        if len(calls) == 2:
            began.set()
            assert may_end.wait(60)
        return len(calls)

    answer = CachedAnswer(compute)
    assert answer() == 1
    answer._due_at = 0.0
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(answer)
        assert began.wait(60)
        assert [answer() for _ in range(5)] == [1] * 5
        may_end.set()
        assert second.result(60) == 2
    assert calls == [0, 1]


def test_the_first_answer_is_awaited() -> None:
    began, may_end = Event(), Event()

    def compute() -> int:
        began.set()
        assert may_end.wait(60)
        return 7

    answer = CachedAnswer(compute)
    with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        first = pool.submit(answer)
        assert began.wait(60)
        patch.setattr(cached_answer, "FIRST_ANSWER_TIMEOUT", 0.01)
        assert answer() is None
        patch.setattr(cached_answer, "FIRST_ANSWER_TIMEOUT", 60.0)
        second = pool.submit(answer)
        may_end.set()
        assert (first.result(60), second.result(60)) == (7, 7)


def test_an_error_is_raised_once_and_keeps_the_previous_answer() -> None:
    def compute() -> int:
        if answers:
            return answers.pop()
        raise ConnectionError("the server is away")

    answers = [1]
    answer = CachedAnswer(compute)
    assert answer() == 1
    answer._due_at = 0.0
    with pytest.raises(ConnectionError):
        answer()
    assert answer._due_at > 0
    answer._due_at = float("inf")
    assert answer() == 1


def test_after_an_error_without_a_previous_answer_there_is_none() -> None:
    def compute() -> int:
        raise ConnectionError("the server is away")

    answer = CachedAnswer(compute)
    with pytest.raises(ConnectionError):
        answer()
    answer._due_at = float("inf")
    assert answer() is None


def test_a_count_of_many_documents_is_kept_and_that_of_few_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_answer, "CACHE_FACTOR", 1e12)
    monkeypatch.setattr(cached_answer, "_counts", {})
    counts = iter([MAX_FRESH_COUNT, MAX_FRESH_COUNT + 1, 7])

    def count() -> tuple[str, int]:
        documents = next(counts)
        return f"{documents:,}", documents

    assert [cached_count("due", count) for _ in range(4)] == ["10,000", "10,001", "10,001", "10,001"]
    assert cached_count("another", count) == "7"


def test_after_an_error_of_a_count_the_previous_one_is_kept_if_it_was_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(documents: int | None) -> Callable[[], tuple[int, int]]:
        def counted() -> tuple[int, int]:
            if documents is None:
                raise ConnectionError("stopped by its limit")
            return documents, documents

        return counted

    monkeypatch.setattr(cached_answer, "CACHE_FACTOR", 0.0)
    monkeypatch.setattr(cached_answer, "_counts", {})
    with pytest.raises(ConnectionError):
        cached_count("due", count(None))
    assert cached_count("due", count(MAX_FRESH_COUNT + 1)) == MAX_FRESH_COUNT + 1
    monkeypatch.setattr(cached_answer, "CACHE_FACTOR", 1e12)
    with pytest.raises(ConnectionError):
        cached_count("due", count(None))
    assert cached_count("due", count(None)) == MAX_FRESH_COUNT + 1

    monkeypatch.setattr(cached_answer, "_counts", {"due": (MAX_FRESH_COUNT + 1, 0.0)})
    assert cached_count("due", count(7)) == 7
    for _ in range(2):
        with pytest.raises(ConnectionError):
            cached_count("due", count(None))
