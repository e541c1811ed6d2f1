"""`queue-manager doctor`: makes every check, and says what to do about what it finds."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_manager.cli.terminal import print_answer, print_line
from queue_manager.core.wording import many
from queue_manager.doctor import Report, examine
from queue_manager.doctor.report import CheckResult, Status

STYLES = {Status.OK: "green", Status.PROBLEM: "bold red", Status.NOT_CHECKED: "yellow"}
STATUS_WIDTH, NAME_WIDTH = 13, 21
INDENT = " " * STATUS_WIDTH


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Check settings, servers, indexes, processes and queues.

    Also checks versions, permissions and clocks. For each problem, says what to do; for a check that cannot be made,
    why. Writes only a document of its own, to test permissions. Takes at most about 20 seconds, even while servers are
    unavailable. Exit code 1 if there is a problem.

    Example: `queue-manager doctor --json`
    """
    report = examine()
    if as_json:
        print_answer(report)
    else:
        _print_report(report)
    if report.count(Status.PROBLEM):
        raise typer.Exit(1)


def _print_report(report: Report) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    print_line((versions, "dim"))
    print_line()
    for result in report.checks:
        _print_result(result)
    problems = sum(len(result.problems) for result in report.checks)
    summary = many(problems, "problem") if problems else "No problem"
    unknown = report.count(Status.NOT_CHECKED)
    print_line()
    print_line(f"{summary} in {len(report.checks)} checks" + (f", {unknown} not checked" if unknown else ""))


def _print_result(result: CheckResult) -> None:
    status = (f"{result.status:<{STATUS_WIDTH}}", STYLES[result.status])
    if result.status is Status.OK:
        name, about = f"{result.check:<{NAME_WIDTH}}", result.statement
    else:
        name, about = result.check, ""
    print_line(status, (name, "bold"), (about, "dim"))
    for problem in result.problems:
        where = "" if problem.system in (None, result.check) else f"{problem.system}: "
        print_line(f"{INDENT}{where}{problem.text}")
        print_line((f"{INDENT}  {problem.action}", "dim"))
    for reason in result.not_checked:
        print_line((f"{INDENT}{reason[:1].upper()}{reason[1:]}", "yellow"))
