"""Wording: sentences, times, durations, numbers, lists of ids and suggestions, as people read them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from queue_manager.core.clock import seconds

MAX_IDS = 5
MAX_ERROR_LENGTH = 300  # characters of an error within a sentence
_TRACEBACK = "Traceback (most recent call last)"
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def sentence(*clauses: str) -> str:
    """Return clauses as a sentence; empty ones are left out."""
    said = "; ".join(filter(None, clauses))
    return f"{said[:1].upper()}{said[1:]}{'' if said.endswith(('.', '!', '?', ' …')) else '.'}"


def error_summary(error: str) -> str:
    """Return an error for a sentence, truncated: its first line, or of a Python traceback the last line."""
    line = next((line.strip() for line in without_traceback(error).splitlines() if line.strip()), "")
    return line if len(line) <= MAX_ERROR_LENGTH else f"{line[:MAX_ERROR_LENGTH]} …"


def without_traceback(error: str) -> str:
    """Return the last line of a Python traceback, which is the exception; other texts are unchanged."""
    return error.strip().rpartition("\n")[2] if error.lstrip().startswith(_TRACEBACK) else error


def when(moment: datetime, now: datetime) -> str:
    """Return `14:00 UTC, in 3 h 12 min`, or `13:02:10 UTC, 3 min ago`; with the date if it is not today."""
    return f"{clock(moment, now)}, {distance(moment, now)}"


def distance(moment: datetime, now: datetime) -> str:
    """Return `in 3 h 12 min`, `3 min ago` or `now`."""
    if abs(moment - now) < seconds(1):
        return "now"
    return f"in {span(moment - now)}" if moment > now else f"{span(now - moment)} ago"


def clock(moment: datetime, now: datetime) -> str:
    """Return the time of day in UTC, with the date if it is not today."""
    time = moment.strftime("%H:%M" if moment.second == 0 else "%H:%M:%S")
    if moment.date() == now.date():
        return f"{time} UTC"
    year = "" if moment.year == now.year else f" {moment.year}"
    return f"{moment.day} {moment.strftime('%b')}{year}, {time} UTC"


def span(time: timedelta) -> str:
    """Return a time in its two largest units, such as `3 h 12 min`."""
    left, parts = int(time.total_seconds()), list[str]()
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(filter(None, parts)) or "less than a second"


def rounded(time: timedelta | float, *, least: int = 2) -> str:
    """Return a time, or a number of seconds, in the largest unit that it has `least` of, such as `3 min`."""
    left = max(time.total_seconds() if isinstance(time, timedelta) else time, 0)
    unit, size = next((one for one in _UNITS if left >= least * one[1]), _UNITS[-1])
    return f"{left / size:.0f} {unit}"


def many(count: int, thing: str, things: str | None = None, *, limit: int | None = None) -> str:
    """Return `1 room`, `1,204 rooms`; `at least 10,000 rooms` if no more than that `limit` were counted.

    `things` is the plural if it is irregular.
    """
    return f"{'at least ' if count == limit else ''}{count:,} {thing if count == 1 else things or f'{thing}s'}"


def ordinal(number: int) -> str:
    """Return `1st`, `2nd`, `11th`."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def stuck_items(thing: str, things: str, found: Sequence[str], *, late: timedelta, count: int | None = None) -> str:
    """Return what to say of items whose lease ended that long ago without a result.

    Args:
        count: of all these items, if `found` has only some of them.
    """
    number = len(found) if count is None else count
    return (
        f"{many(number, f'stuck {thing}', f'stuck {things}')}: due, but the worker's lease ended more than "
        f"{rounded(late)} ago and no worker has taken over ({first_ids(found, number)})"
    )


def first_ids(ids: Iterable[Any], count: int) -> str:
    """Return the first few of `count` ids, and how many more there are."""
    shown = [str(one) for one in islice(ids, MAX_IDS)]
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean X?)` if a known name resembles `name`; empty otherwise."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
