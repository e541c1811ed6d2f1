"""The reference of the Python client, from its docstrings: `python -m dev.client_reference` writes it."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from queue_manager import client
from queue_manager.client.exchanges import Method
from queue_manager.client.jobs import JobOperations
from queue_manager.client.messages import MessageOperations
from queue_manager.client.systems import SystemOperations

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "python-client.md"
INTRODUCTION = """# Python client

The operations of `queue_manager.client`: see [use the clients](../how-to/http-clients.md). Those of `AsyncClient` are
coroutines and asynchronous iterators. This page is made from the docstrings.
"""
PARTS = {"messages": MessageOperations, "jobs": JobOperations, "systems": SystemOperations}
IMPLICIT = {"self", "cursor"}


def main() -> None:
    PAGE.write_text(reference())


def reference() -> str:
    return "\n".join([INTRODUCTION, *_client(), *_parts(), *_results()])


def _client() -> Iterator[str]:
    yield f"## Client\n\n{_entry('Client', client.Client.__init__, client.Client)}"


def _parts() -> Iterator[str]:
    for name, part in PARTS.items():
        yield f"## client.{name}\n"
        for method, described in vars(part).items():
            if isinstance(described, Method):
                yield _entry(f"{name}.{method}", getattr(part, method))
        if name == "messages":
            yield from _received()


def _received() -> Iterator[str]:
    yield f"### ReceivedMessage\n\n{_text(client.ReceivedMessage)}\n"
    for method in ("ack", "nack", "touch"):
        yield _entry(f"message.{method}", getattr(client.ReceivedMessage, method))


def _results() -> Iterator[str]:
    yield "## Results\n"
    for name in client.__all__:
        kind = getattr(client, name)
        if fields := inspect.get_annotations(kind) if not issubclass(kind, Exception) else {}:
            members = ", ".join(f"`{field}`" for field in fields if not field.startswith("_"))
            yield f"- **{name}**: {members}. {_text(kind)}" if members else f"- **{name}**: {_text(kind)}"
    yield ""


class _Verbatim(str):
    """An annotation that is shown without quotation marks."""

    def __repr__(self) -> str:
        return str(self)


def _entry(name: str, function: Any, described: Any = None) -> str:
    found = inspect.signature(function)
    shown = [
        one.replace(annotation=_Verbatim(one.annotation))
        for one in found.parameters.values()
        if one.name not in IMPLICIT
    ]
    parameters = found.replace(parameters=shown, return_annotation=inspect.Signature.empty)
    text = textwrap.indent(_text(described or function), "    ")
    return f"```text\n{name}{parameters}{_result(found.return_annotation)}\n{text}\n```\n"


def _result(annotation: str) -> str:
    if annotation == "None":
        return ""
    if annotation == "EventPosition":
        return " -> Iterator[ServerEvent]"
    shown = re.sub(r"^Exchange\[(.+)\]$", r"\1", annotation).replace("ReceivedT", "ReceivedMessage")
    return f" -> {re.sub(r'^Page', 'Iterator', shown)}"


def _text(described: Any) -> str:
    return inspect.cleandoc(described.__doc__ or "")


if __name__ == "__main__":
    main()
