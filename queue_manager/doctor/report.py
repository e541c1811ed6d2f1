"""The report of `queue-manager doctor`.

Guarantee: it takes at most `HEALTH_TIMEOUT` for the readings of health, and `CHECK_TIMEOUT` for the checks that depend
on them; the others are made meanwhile. A check that fails or takes too long says why, and the others are made.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from importlib.metadata import version

from anyio import to_thread
from pydantic import BaseModel, Field, computed_field

from queue_manager.core.background import call_within
from queue_manager.core.errors import AppError, typed_reason
from queue_manager.doctor.checks import CHECKS, SETTINGS, VERSIONS, Check
from queue_manager.doctor.findings import Finding, Findings, NotChecked
from queue_manager.doctor.installation import DISTRIBUTION, settings_error
from queue_manager.health.problems import all_problems
from queue_manager.health.readings import Readings, read
from queue_manager.health_rules import Problem
from queue_manager.server_calls import mongodb

HEALTH_TIMEOUT = 8.0  # seconds
CHECK_TIMEOUT = 6.0  # seconds
DRIVER_MARGIN = 0.5  # seconds by which the driver of MongoDB gives up earlier, so that it reports what is wrong


class Status(StrEnum):
    """The result of a check. Only `problem` makes the exit status 1."""

    OK = "ok"
    PROBLEM = "problem"
    NOT_CHECKED = "not checked"


class CheckResult(BaseModel):
    """The result of one check."""

    check: str
    statement: str = Field(description="What is true if the check found nothing.")
    problems: list[Finding]
    not_checked: list[str] = Field(description="Why the check, or a part of it, could not be made.")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def status(self) -> Status:
        if self.problems:
            return Status.PROBLEM
        return Status.NOT_CHECKED if self.not_checked else Status.OK


class Report(BaseModel):
    """All checks, in the order of the table."""

    versions: dict[str, str]
    checks: list[CheckResult]

    def count(self, status: Status) -> int:
        return sum(one.status is status for one in self.checks)


def examine() -> Report:
    """Make every check once. Reads only, except for a write probe of MongoDB."""
    return asyncio.run(_examine())


async def _examine() -> Report:
    # First and alone: Celery changes sys.path, in which versions are looked up, while other checks import modules.
    versions = {name: version(name) for name in (DISTRIBUTION, "celery", "kombu", "redis", "pymongo")}
    begun = {VERSIONS: asyncio.create_task(_found_by(VERSIONS, set()))}
    await begun[VERSIONS]
    if await to_thread.run_sync(settings_error) is None:
        alone = [check for check in CHECKS if not check.servers and check is not VERSIONS]
        begun |= {check: asyncio.create_task(_found_by(check, set())) for check in alone}
        readings = await read(HEALTH_TIMEOUT)
        missing, problems = _missing(readings), all_problems(readings)
    else:
        missing, problems = {SETTINGS}, []
    found = await asyncio.gather(*(begun.get(check) or _found_by(check, missing) for check in CHECKS))
    return Report(
        versions={"python": platform.python_version(), **versions},
        checks=[_result(check, problems, findings) for check, findings in zip(CHECKS, found, strict=True)],
    )


def _missing(readings: Readings) -> set[str]:
    """Return the servers that cannot be used, as checks name them in `needs`."""
    answers = {"mongodb": readings.mongodb, "redis": readings.redis, "broker": readings.broker}
    return {server for server, answer in answers.items() if isinstance(answer, Problem)}


async def _found_by(check: Check, missing: set[str]) -> list[Findings]:
    """Return what the function of a check yields, and why it was not called or did not end."""
    if unmet := [need for need in check.needs if need in missing]:
        if unmet == [check.name]:  # whose problem a health rule reports
            return []
        return [NotChecked(f"depends on {', '.join(unmet)}")]
    if check.find is None:
        return []
    found: list[Findings] = []
    try:
        await call_within(CHECK_TIMEOUT, _collect, check.find, found)
    except TimeoutError:
        found.append(NotChecked(f"it took longer than {CHECK_TIMEOUT:g} s"))
    except AppError as error:
        found.append(NotChecked(str(error)))
    except Exception as error:  # a failed check must not prevent the others
        found.append(NotChecked(typed_reason(error)))
    return found


def _collect(find: Callable[[], Iterator[Findings]], found: list[Findings]) -> None:
    with mongodb(CHECK_TIMEOUT - DRIVER_MARGIN):
        found.extend(find())


def _result(check: Check, problems: Sequence[Problem], findings: Sequence[Findings]) -> CheckResult:
    of_health = [Finding(one.text, one.action, one.system, one.rule.id) for one in problems if check.covers(one)]
    return CheckResult(
        check=check.name,
        statement=check.statement,
        problems=[*of_health, *(one for one in findings if isinstance(one, Finding))],
        not_checked=[one.reason for one in findings if isinstance(one, NotChecked)],
    )
