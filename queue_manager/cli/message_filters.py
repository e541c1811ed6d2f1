"""The options that select messages, the same in every command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from queue_manager.operations.message_fields import parse_time
from services.message_queue import Filter
from services.message_queue.fields import checked_text


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a filter, which it gets as `where`."""
    options = inspect.signature(_filter, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True).parameters
    taken = [*(one for name, one in own.items() if name != "where"), *options.values()]

    def run(**given: Any) -> None:
        where = _filter(**{name: given.pop(name) for name in options})
        command(**given, where=where)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in taken]
    )
    run.__annotations__ = {one.name: one.annotation for one in taken}
    return run


def _filter(
    type: Annotated[str | None, typer.Option("--type", help="Only messages of this type.")] = None,
    priority: Annotated[
        int | None, typer.Option(min=0, help="Only messages of this priority; 0 is the lowest.")
    ] = None,
    attempts: Annotated[int | None, typer.Option(min=0, help="Only messages with this number of deliveries.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only messages added at this time or later, such as 2026-01-31T09:30Z.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only messages added at this time or earlier.")] = None,
    search: Annotated[
        str | None,
        typer.Option(help="Only messages with this text in payload, id, type or last error; case-insensitive."),
    ] = None,
) -> Filter:
    for name, text in (("--type", type), ("--search", search)):
        if text is not None:
            checked_text(text, name)
    return Filter(
        type=type,
        priority=priority,
        attempts=attempts,
        since=parse_time(since, "--since"),
        until=parse_time(until, "--until"),
        search=search,
    )
