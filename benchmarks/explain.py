"""What the server says of the statements that were really sent: recorded on the wire, then explained.

Guarantee: the figures belong to the program's own statements; nothing here repeats a query by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pymongo import monitoring

from models import database

Document = dict[str, Any]
_EXPLAINED = {"aggregate", "find", "count", "update"}
_OF_THE_SESSION = {"lsid", "txnNumber", "readConcern", "writeConcern", "ordered", "maxTimeMS"}


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What running one statement cost the server."""

    statement: str
    keys: int
    documents: int
    used_disk: bool
    memory: int
    """Bytes that the stage with the most held at once, where the server tells."""


class Recorder(monitoring.CommandListener):
    """Keeps the statements that are sent while it records. Registered before the client is opened."""

    def __init__(self) -> None:
        self._sent: list[Document] | None = None

    @contextmanager
    def recording(self) -> Iterator[list[Document]]:
        """Record what is sent meanwhile."""
        sent: list[Document] = []
        self._sent = sent
        try:
            yield sent
        finally:
            self._sent = None

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if self._sent is None or event.command_name not in _EXPLAINED:
            return
        command = {
            name: value
            for name, value in event.command.items()
            if not name.startswith("$") and name not in _OF_THE_SESSION
        }
        # The server explains one write at a time.
        writes = command.get("updates", [])
        self._sent += [{**command, "updates": [write]} for write in writes] if writes else [command]

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


def explain(command: Document) -> Iterator[Explained]:
    """Run one statement once more, for its figures, and those of its look-ups; an update changes nothing."""
    plan = database.database().command("explain", command, verbosity="executionStats")
    yield _explained(_name(command), [node for node in _nodes(plan) if "$lookup" not in node])
    for node in _nodes(plan):
        if "$lookup" in node and "totalKeysExamined" in node:
            look = node["$lookup"]
            yield _explained(f"its look-ups of {look['from']} by {look['foreignField']}", [node])


def different(commands: Sequence[Document]) -> Iterator[Document]:
    """Yield the first statement of each kind: a scan in batches repeats them."""
    kinds: dict[tuple[str, str], Document] = {}
    for command in commands:
        kinds.setdefault((_name(command), ",".join(_condition(command))), command)
    yield from kinds.values()


def _explained(name: str, nodes: list[Document]) -> Explained:
    return Explained(
        statement=name,
        keys=_most(nodes, "totalKeysExamined"),
        documents=_most(nodes, "totalDocsExamined"),
        used_disk=any(node.get("usedDisk") for node in nodes),
        memory=max(_most(nodes, "totalMemoryUsageBytes"), _memory_of_groups(nodes)),
    )


def _name(command: Document) -> str:
    verb = next(iter(command))
    index = command.get("hint") or command.get("updates", [{}])[0].get("hint")
    return f"{verb} {command[verb]}" + (f" by {index}" if index else "")


def _condition(command: Document) -> Document:
    if "updates" in command:
        return dict(command["updates"][0]["q"])
    return dict(command.get("filter") or command.get("query") or {})


def _most(nodes: list[Document], figure: str) -> int:
    return max((int(node[figure]) for node in nodes if figure in node), default=0)


def _memory_of_groups(nodes: list[Document]) -> int:
    """Return the largest sum of what the accumulators of one `$group` held."""
    sums = (sum(map(int, node["maxAccumulatorMemoryUsageBytes"].values())) for node in nodes if _tells(node))
    return max(sums, default=0)


def _tells(node: Document) -> bool:
    return isinstance(node.get("maxAccumulatorMemoryUsageBytes"), dict)


def _nodes(node: Any) -> Iterator[Document]:
    """Yield every document of a plan, but not the plans that were not taken."""
    if isinstance(node, dict):
        yield node
        for name, value in node.items():
            if name != "rejectedPlans":
                yield from _nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from _nodes(value)
