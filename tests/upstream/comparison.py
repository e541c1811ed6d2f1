"""Compares the outcomes of the same tests on kombu's own Redis transport and on ours.

A test that fails on both fails because of the environment: a package, a server or a version that is not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

NOT_RUN = "not run"
Outcomes = Mapping[str, str]
"""Test → `passed`, `failed`, `skipped` or `not run`, because the tests before it took too long."""


@dataclass
class Comparison:
    """Names of tests, by what they show."""

    passed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    environment: list[str] = field(default_factory=list)
    """Fail on both."""
    only_ours: list[str] = field(default_factory=list)
    """Fail on kombu's own transport, and pass on ours."""
    differences: list[str] = field(default_factory=list)
    """Pass on kombu's own transport, and fail on ours, as listed."""
    not_listed: list[str] = field(default_factory=list)
    """Pass on kombu's own transport, fail on ours, and are not listed."""
    not_different: list[str] = field(default_factory=list)
    """Are listed, but pass on ours, fail on both, or do not exist."""
    not_run: list[str] = field(default_factory=list)
    """Were reached on neither."""

    @property
    def is_as_listed(self) -> bool:
        return not self.not_listed and not self.not_different and not self.not_run


def compare(stock: Outcomes, ours: Outcomes, listed: Mapping[str, str]) -> Comparison:
    """Sort all tests; `listed` are the deliberate differences and the reason of each.

    A test that was not run on one of them counts as failed there.
    """
    result = Comparison()
    for test in sorted({*stock, *ours, *listed}):
        found = stock.get(test, "failed"), ours.get(test, "failed")
        kinds = tuple("failed" if outcome == NOT_RUN else outcome for outcome in found)
        is_listed = test in listed
        if found == (NOT_RUN, NOT_RUN):
            result.not_run.append(test)
        elif kinds == ("passed", "failed"):
            (result.differences if is_listed else result.not_listed).append(test)
        elif is_listed:
            result.not_different.append(test)
        elif kinds == ("passed", "passed"):
            result.passed.append(test)
        elif kinds == ("failed", "failed"):
            result.environment.append(test)
        elif kinds == ("failed", "passed"):
            result.only_ours.append(test)
        else:
            result.skipped.append(test)
    return result


def report(result: Comparison, listed: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a report."""
    yield f"{len(result.passed)} pass on both"
    yield f"{len(result.skipped)} are skipped"
    yield from _section("fail on both (environment)", result.environment)
    yield from _section("fail on kombu's own transport only", result.only_ours)
    yield f"{len(result.differences)} are deliberate differences:"
    for reason in dict.fromkeys(listed.values()):
        yield f"    {sum(listed[test] == reason for test in result.differences)}: {reason}"
    yield from _section("fail on our transport only, and are not listed", result.not_listed)
    yield from _section("are listed, but are no difference", result.not_different)
    yield from _section("were reached on neither transport", result.not_run)


def _section(title: str, tests: list[str]) -> Iterator[str]:
    yield f"{len(tests)} {title}" + (":" if tests else "")
    yield from (f"    {test}" for test in tests)
