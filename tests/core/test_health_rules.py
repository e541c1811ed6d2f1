"""The table of rules: well formed, and the same in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from queue_manager.health_rules import Rule

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "health.md"


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.id)
def test_a_rule_has_an_id_and_sentences(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.id)
    assert rule.severity in ("critical", "warning")
    assert rule.scope
    for sentence in (rule.condition, rule.action):
        assert re.fullmatch(r"[A-Z`].*\.", sentence)


def test_the_documentation_has_the_same_table() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{rule.id}` | {rule.severity} | {rule.scope} | {rule.condition} | {rule.action} |" for rule in Rule
    ]
