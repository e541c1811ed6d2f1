"""The comparison of both transports, and what is listed for it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.upstream.__main__ import ROOT, differences, versions
from tests.upstream.comparison import NOT_RUN, compare, report

PAGE = ROOT / "docs" / "decisions" / "upstream-tests.md"
STOCK = {"both": "passed", "neither": "failed", "theirs": "passed", "ours": "failed", "none": "skipped"}
OURS = {"both": "passed", "neither": "failed", "theirs": "failed", "ours": "passed", "none": "skipped"}


def test_tests_are_sorted_by_where_they_pass() -> None:
    result = compare(STOCK, OURS, {"theirs": "a reason"})

    assert (result.passed, result.environment, result.only_ours) == (["both"], ["neither"], ["ours"])
    assert (result.skipped, result.differences) == (["none"], ["theirs"])
    assert result.is_as_listed


def test_a_failure_that_is_not_listed_is_found() -> None:
    result = compare(STOCK, OURS, {})

    assert result.not_listed == ["theirs"]
    assert not result.is_as_listed


def test_an_unfinished_upstream_test_has_failed() -> None:
    assert compare({"a": "passed"}, {}, {}).not_listed == ["a"]
    assert compare({"a": "passed"}, {"a": NOT_RUN}, {}).not_listed == ["a"]


def test_a_test_that_was_reached_on_neither_transport_fails_the_run() -> None:
    result = compare({"a": NOT_RUN}, {"a": NOT_RUN}, {})

    assert result.not_run == ["a"]
    assert not result.is_as_listed


def test_a_listed_test_must_fail_on_our_transport_only() -> None:
    for name in ("both", "neither", "ours", "none", "removed"):
        result = compare(STOCK, OURS, {"theirs": "a reason", name: "a reason"})

        assert result.not_different == [name]
        assert not result.is_as_listed


def test_the_report_counts_the_differences_of_each_reason() -> None:
    listed = {"theirs": "a reason"}

    assert "    1: a reason" in report(compare(STOCK, OURS, listed), listed)


def test_the_tests_are_those_of_the_installed_versions() -> None:
    pinned = (ROOT / "constraints.txt").read_text().splitlines()

    assert {f"{project}=={version}" for project, version in versions().items()} <= set(pinned)


def test_the_page_has_each_reason_and_its_number() -> None:
    reasons = list(differences().values())
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)

    assert {reason: int(count) for count, reason in rows} == {reason: reasons.count(reason) for reason in reasons}


def test_tests_that_the_page_names_exist() -> None:
    named = re.findall(r"\[(test_\w+)\]\(\.\./\.\./(tests/\S+\.py)\)", PAGE.read_text())

    assert named
    for name, path in named:
        assert f"def {name}(" in Path(ROOT, path).read_text(), name
