"""Reference pages generated from the code: every command, every HTTP operation, and the public Python names."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import typer

import queue_manager
from dev.api_description import api_description
from queue_manager.cli.commands import cli
from queue_manager.web.http.schema_fields import Field, parameter_fields

_LITERAL = re.compile(r"`[^`]*`")


def pages() -> dict[str, tuple[str, str]]:
    """Return the title and the text of each page, by its path on the site."""
    return {
        "reference/generated/commands.md": ("Every command", _commands()),
        "reference/generated/http-operations.md": ("Every HTTP operation", _operations()),
        "reference/generated/python.md": ("Python API", _python()),
    }


def _commands() -> str:
    sections = [
        "# Every command",
        "Generated from the program. [Command line](../command-line.md) is the overview.",
    ]
    for path, command in _leaves(typer.main.get_command(cli), "queue-manager"):
        context = typer.Context(command, info_name=path)
        usage = " ".join(command.collect_usage_pieces(context))
        sections += [f"## {path}", _escaped(inspect.cleandoc(command.help or "")), f"```text\n{path} {usage}\n```"]
        rows = [_parameter_row(one) for one in command.params if not getattr(one, "hidden", False)]
        if rows:
            sections.append("\n".join(["| parameter | default | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(sections) + "\n"


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    below: dict[str, Any] = getattr(command, "commands", {})
    if command.callback is not None and not (below and getattr(command, "no_args_is_help", False)):
        yield path, command
    for name, one in below.items():
        yield from _leaves(one, f"{path} {name}")


def _parameter_row(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    name = (parameter.name or "").upper() if is_argument else ", ".join(parameter.opts)
    default = parameter.default
    shown = f"`{default}`" if isinstance(default, int | float | str) and not isinstance(default, bool) else ""
    return f"| `{_cell(name)}` | {shown} | {_cell(getattr(parameter, 'help', None) or '')} |"


def _operations() -> str:
    sections = [
        "# Every HTTP operation",
        "Generated from the application's OpenAPI description, with every system switched on. "
        "[HTTP API](../http-api.md) is the overview. "
        "A web process serves the description of its own operations at `/openapi.json` and `/docs`.",
    ]
    schema = api_description()
    models = schema["components"]["schemas"]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            sections += [f"## {method.upper()} {path}", _escaped(operation.get("description", ""))]
            sections.append(f"Role: {operation['x-role']}. Responses: {_responses(operation['responses'])}.")
            rows = [_field_row(one) for one in parameter_fields(operation.get("parameters", []), models)]
            if rows:
                head = ["| parameter | type | default | meaning |", "|---|---|---|---|"]
                sections.append("\n".join([*head, *rows]))
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                body = json.dumps(content["schema"], indent=2)
                sections.append(f"Body, `{kind}`:\n\n```json\n{body}\n```")
    for name in sorted(models):
        sections.append(f"## {name}\n\n```json\n{json.dumps(models[name], indent=2)}\n```")
    return "\n\n".join(one for one in sections if one) + "\n"


def _responses(responses: dict[str, Any]) -> str:
    return ", ".join(f"{status} {_escaped(responses[status]['description'])}" for status in sorted(responses))


def _field_row(field: Field) -> str:
    default = "required" if field.is_required else "" if field.default is None else f"`{json.dumps(field.default)}`"
    return f"| `{field.name}` | {_cell(field.kind)} | {default} | {_cell(field.about)} |"


def _python() -> str:
    sections = ["# Python API", "The public names of the package `queue_manager`, with their docstrings."]
    for name in queue_manager.__all__:
        value = getattr(queue_manager, name)
        sections += [f"## {name}", *_described(value, name)]
    return "\n\n".join(sections) + "\n"


def _described(value: Any, name: str) -> Iterator[str]:
    kind = value if inspect.isclass(value) else type(value)
    if is_dataclass(value) and inspect.isclass(value):
        yield _docstring(value)
        yield from _fields(value)
    else:
        if callable(value):
            yield f"```text\n{name}{_signature(value)}\n```"
        yield _docstring(value)
    if kind.__module__.partition(".")[0] in ("services", "queue_manager"):
        for method, function in vars(kind).items():
            if not method.startswith("_") and inspect.isfunction(function) and function.__doc__:
                yield f"### {name}.{method}\n\n```text\n{method}{_signature(function)}\n```\n\n{_docstring(function)}"


def _fields(kind: type) -> Iterator[str]:
    """Return a table of a dataclass's fields, with the texts below them in the source. Base classes come first."""
    rows: dict[str, tuple[str, str, str]] = {}
    for base in reversed([one for one in kind.__mro__ if is_dataclass(one)]):
        body = ast.parse(inspect.cleandoc(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                name, default = field.target.id, f"`{ast.unparse(field.value)}`" if field.value else "required"
                is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                meaning = str(below.value.value) if is_text else rows.get(name, ("", "", ""))[2]  # type: ignore[union-attr]
                rows[name] = (f"`{ast.unparse(field.annotation)}`", default, meaning)
    if rows:
        lines = [f"| `{name}` | {' | '.join(map(_cell, row))} |" for name, row in rows.items()]
        yield "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *lines])


def _signature(value: Any) -> str:
    """Return the signature without the quotes of its annotations, and without addresses of functions."""
    try:
        text = str(inspect.signature(value))
    except ValueError:
        return "(…)"
    return re.sub(r"<[^<>]*(?:<\w+>[^<>]*)?>", "…", re.sub(r"(: |-> )'([^']*)'", r"\1\2", text))


def _docstring(value: Any) -> str:
    text = _escaped(inspect.getdoc(value) or "")
    text = re.sub(r"^(Args|Raises|Returns):\n", r"**\1**\n\n", text, flags=re.MULTILINE)
    return re.sub(r"^    ( *)(?:(\w+): )?", _list_item, text, flags=re.MULTILINE)


def _list_item(found: re.Match[str]) -> str:
    return "    " if found[1] else f"- `{found[2]}`: " if found[2] else "- "


def _escaped(text: str) -> str:
    """Return `text` without characters that would be HTML outside of literals."""
    kept = [found[0] for found in _LITERAL.finditer(text)]
    parts = [part.replace("<", "&lt;") for part in _LITERAL.split(text)]
    return parts[0] + "".join(literal + part for literal, part in zip(kept, parts[1:], strict=True))


def _cell(text: str) -> str:
    return " ".join(_escaped(text).replace("|", "\\|").split())
