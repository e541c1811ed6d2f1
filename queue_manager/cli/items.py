"""`queue-manager items`: list, explain, export and retry the items of every system, also of users' own.

Guarantee: the commands call the functions that the HTTP API calls, so that they find, audit and send the same.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

import typer
from pydantic import TypeAdapter

from queue_manager.cli.changes import YesOption, confirm, current_actor
from queue_manager.cli.completion import complete_system_with_items
from queue_manager.cli.errors import fail
from queue_manager.cli.terminal import (
    AnswerJsonOption,
    CursorOption,
    FormatOption,
    every_page,
    export_rows,
    print_answer,
    print_json,
    print_line,
    print_table,
)
from queue_manager.cli.why import why
from queue_manager.core.wording import many, without_traceback
from queue_manager.items import Item, State
from queue_manager.operations import items as operations
from queue_manager.operations.schemas import validated
from queue_manager.operations.system_schemas import MAX_RETRIED, RetriedItems
from queue_manager.operations.systems import find_system

ITEM_COLUMNS = ("id", "title", "state", "due_at", "since", "attempts", "next_at", "reason")
EXPORTED_FIELDS = [one.name for one in fields(Item) if one.name != "position"]
PAGE_SIZE = 200  # items that an export reads at once
_ITEM = TypeAdapter(Item)

items_cli = typer.Typer(
    help="List, explain, export and retry the items of a system.\n\n"
    "Items are rooms, agencies, sites, and those of your own systems. For messages see `queue-manager queue`, for jobs "
    "`queue-manager jobs`.\n\n"
    "An item is `due`, then `in-progress`; it is `stuck` if its lease ended without a result, and `failed` after its "
    "last attempt, until it is dispatched again.",
    no_args_is_help=True,
)

ItemSystem = Annotated[
    str,
    typer.Argument(
        help="A system with items, such as support-snooze.", metavar="SYSTEM", autocompletion=complete_system_with_items
    ),
]
ItemId = Annotated[str, typer.Argument(help="The item's id.", metavar="ID")]
StateOfItems = Annotated[State, typer.Argument(help="The state of the items.", metavar="STATE")]
ItemSearch = Annotated[str | None, typer.Option(help="Only items with this text in the id, the title or the reason.")]
IsOldestFirst = Annotated[bool, typer.Option("--oldest-first", help="The oldest first instead of the newest.")]


@items_cli.command("list")
def list_items(
    system: ItemSystem,
    state: StateOfItems = "due",
    search: ItemSearch = None,
    limit: Annotated[int, typer.Option(min=1, max=PAGE_SIZE, help="Maximum number of items.")] = 20,
    cursor: CursorOption = None,
    is_oldest_first: IsOldestFirst = False,
    as_json: AnswerJsonOption = False,
) -> None:
    """List the items of a system in a state, newest first. Times are UTC.

    A page reads 5,000 items of any state at most, so it may be short or empty; it prints the cursor to continue.

    Example: `queue-manager items list support-snooze failed --search timeout`
    """
    found = find_system(system)
    order = _order(is_oldest_first)
    page = operations.item_page(found, state, search=search, cursor=cursor, limit=limit, order=order)
    if as_json:
        print_answer(page)
    else:
        titles = {"since": "in this state since", "attempts": found.attempts_name.lower()}
        rows = [{**vars(item), "reason": without_traceback(item.reason or "")} for item in page.items]
        print_table(rows, ITEM_COLUMNS, nothing="no items", cursor=page.cursor, renamed=titles)


@items_cli.command()
def count(system: ItemSystem, state: StateOfItems = "due", search: ItemSearch = None) -> None:
    """Count the items in a state, up to 20,000, for at most 5 s.

    Example: `queue-manager items count support-snooze failed`
    """
    found = operations.count_items(find_system(system), state, search)
    typer.echo(str(found))


@items_cli.command()
def show(
    system: ItemSystem,
    id: ItemId,
    is_document: Annotated[
        bool, typer.Option("--document", help="Print its document instead, in relaxed extended JSON.")
    ] = False,
    as_json: AnswerJsonOption = False,
) -> None:
    """Explain why an item is in its state, and what happened to it. Exit code 1 if there is none. Times are UTC.

    Example: `queue-manager items show support-snooze 65a1b2c3d4e5f60718293a4b`
    """
    found = find_system(system)
    if is_document:
        print_json(operations.item_document(found, id))
        return
    found.open_items()  # a system without items is refused
    why(id, system, as_json)


@items_cli.command("export")
def export_items(
    system: ItemSystem,
    state: StateOfItems = "due",
    search: ItemSearch = None,
    form: FormatOption = "jsonl",
    is_oldest_first: IsOldestFirst = False,
) -> None:
    """Print all items in a state, as JSON lines or CSV.

    Example: `queue-manager items export support-snooze failed --format csv > failed.csv`
    """
    found, order = find_system(system), _order(is_oldest_first)
    pages = every_page(
        lambda at: operations.item_page(found, state, search=search, cursor=at, limit=PAGE_SIZE, order=order)
    )
    rows = (_ITEM.dump_json(item).decode() for page in pages for item in page.items)
    export_rows(rows, form, columns=EXPORTED_FIELDS)


@items_cli.command()
def retry(
    system: ItemSystem,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of items.", metavar="ID")] = None,
    state: Annotated[
        Literal["due", "stuck", "failed"] | None, typer.Option(help="Instead of ids: all items in this state.")
    ] = None,
    search: Annotated[str | None, typer.Option(help="With --state: only those with this text.")] = None,
    yes: YesOption = False,
) -> None:
    """Dispatch due items, and retry stuck or failed ones.

    At most 1,000 are dispatched at once. Items that are in progress, not due or gone are left alone. `--state` asks for
    confirmation with the number of items. Exit code 1 if not all were dispatched.

    Examples: `queue-manager items retry support-snooze 65a1b2c3d4e5f60718293a4b`, `queue-manager items retry
    support-snooze --state failed --search timeout --yes`
    """
    from tasks.systems import require_tasks  # imported here, because it takes a second

    if bool(ids) == bool(state) or (search is not None and state is None):
        fail("give ids of items, or --state, optionally with --search", code=2)
    require_tasks()  # they dispatch the items
    found = find_system(system)
    given: dict[str, Any] = {"ids": ids} if ids else {"state": state, "search": search}
    body = validated(RetriedItems, given)
    if state is not None:
        counted = operations.count_items(found, state, search)
        if not counted.count and not counted.is_complete:
            fail(f"no items of {system} were found in {operations.SEARCH_TIMEOUT:g} s; some may match", code=1)
        matching = many(counted.count, "item") + ("" if counted.is_complete else " or more")
        number = f"{MAX_RETRIED:,} of {matching}" if counted.count > MAX_RETRIED else matching
        confirm("dispatch", counted.count, "item", f" of {system}", number=number, yes=yes)
    answer = operations.retry_items(found, body, current_actor())
    print_line(f"{answer.sent} of {answer.of} dispatched")
    if answer.sent == answer.of:
        return
    if answer.of > MAX_RETRIED:
        typer.echo("run the command again for the rest", err=True)
    if body.ids:
        typer.echo("the others are in progress or not due, or there are no such items", err=True)
    raise typer.Exit(1)


def _order(is_oldest_first: bool) -> Literal["newest", "oldest"]:
    return "oldest" if is_oldest_first else "newest"
