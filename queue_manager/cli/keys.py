"""`queue-manager keys`: the API keys of the web process."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from queue_manager.cli.terminal import print_table
from queue_manager.core.clock import local_now, to_iso
from queue_manager.core.settings import settings
from queue_manager.operations.api_keys import configured_keys


def keys(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False) -> None:
    """List the API keys, without their secrets.

    A key without systems is for all of them. The keys are those of QM_API_KEYS or QM_API_KEYS_FILE. Exit code 2 if the
    file cannot be read or is invalid: a running web process keeps its last valid keys.

    Example: `queue-manager keys --json`
    """
    found = configured_keys(settings())
    if as_json:
        listed = [
            {
                "name": one.name,
                "role": one.role,
                "systems": one.systems,
                "expires": one.expires_at and to_iso(one.expires_at),
                "is_expired": one.is_expired(local_now()),
            }
            for one in found
        ]
        typer.echo(json.dumps(listed, indent=2))
    else:
        rows = [{**vars(one), "systems": ", ".join(one.systems or ())} for one in found]
        nothing = "no API keys: only this machine has access, with the role operator"
        print_table(rows, ("name", "role", "systems", "expires_at"), nothing=nothing)
