"""What people expect of the dashboard of a queue, and the tests in a browser that show it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TASKS = TESTS.parent / "docs/reference/dashboard.md"

SHOWN_BY = {
    "live counts": "browser/test_live_messages.py::test_changes_by_others_appear_without_a_reload",
    "push that resumes without a gap": "browser/test_live_messages.py::test_a_hundred_broken_connections_leave_no_gap",
    "a chart of throughput": "browser/test_history.py::test_messages_and_jobs_have_charts_like_systems",
    "a chart of latency with percentiles": "browser/test_history.py::"
    "test_the_values_of_a_chart_are_read_with_the_keyboard_and_as_a_table",
    "retry or cancel one": "browser/test_jobs_page.py::test_a_job_is_canceled_or_retried",
    "act on a selection": "browser/test_selection.py::test_selected_jobs_are_retried_canceled_and_deleted",
    "act on what matches, after a count": "browser/test_systems_pages.py::"
    "test_all_matching_items_are_retried_after_a_count",
    "browse and replay dead letters": "browser/test_messages_page.py::test_a_selection_of_dead_letters_is_replayed",
    "edit a payload before its replay": "browser/test_export.py::"
    "test_a_failed_message_is_corrected_and_replayed_in_one_step",
    "search in payloads": "browser/test_message_filters.py::test_a_search_continues_automatically_to_the_end",
    "pause and resume": "browser/test_systems_pages.py::test_a_system_is_paused_with_a_reason_and_resumed",
    "the schedule": "browser/test_systems_pages.py::test_the_schedule_shows_each_scan_and_the_leader",
    "queues without workers": "browser/test_workers_page.py::test_queues_without_a_worker_are_named",
    "dark colours": "browser/test_display.py::test_colours_are_kept_for_all_pages",
    "keys by default": "browser/test_log_in.py::test_people_log_in_return_to_their_page_and_log_out",
    "roles": "browser/test_log_in.py::test_a_viewer_sees_everything_and_no_button_that_acts",
    "nothing done from other sites": "browser/test_other_sites.py::test_no_action_is_possible_from_another_site",
    "metrics": "browser/test_operator_tasks.py::test_the_metrics_are_read_with_a_browser",
    "a described API": "browser/test_errors_and_outages.py::test_the_api_is_described",
    "a command line": "browser/test_operator_tasks.py::test_effects_of_a_command_appear_on_the_pages",
    "an audit": "browser/test_audit_page.py::test_an_edit_is_shown_with_both_values_and_leads_to_its_message",
    "what each team may see": "browser/test_operator_tasks.py::test_the_holder_of_a_limited_key_sees_only_its_systems",
    "history that survives Redis": "browser/test_history.py::test_charts_survive_the_loss_of_redis",
    "the time left of a message": "browser/test_live_messages.py::test_the_countdown_is_correct_with_any_browser_clock",
    "alerts": "browser/test_operator_tasks.py::test_an_alert_is_sent_for_a_problem_of_the_overview",
    "the leader and its lease": "browser/test_systems_pages.py::test_the_overview_shows_problems",
}


@pytest.mark.parametrize("capability", SHOWN_BY)
def test_each_capability_names_an_existing_test(capability: str) -> None:
    module, _, name = SHOWN_BY[capability].partition("::")
    assert re.search(rf"^def {name}\(", (TESTS / module).read_text(), re.MULTILINE)


def test_each_operator_task_names_an_existing_test() -> None:
    _, _, tasks = TASKS.read_text().partition("## Tasks")
    rows = [row for row in tasks.partition("\n## ")[0].splitlines() if row.startswith("| ")][1:]
    assert len(rows) == 15
    for row in rows:
        shown_by = re.findall(r"\[(test_\w+)\]\(../../(tests/browser/\w+.py)\)", row.rpartition("|")[0])
        assert shown_by, row
        for name, module in shown_by:
            assert re.search(rf"^def {name}\(", (TESTS.parent / module).read_text(), re.MULTILINE), name
