"""The `queue-manager` command."""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper
from pathlib import Path

from queue_manager.core.errors import ConfigurationError
from queue_manager.core.imports import require_own_packages


def main() -> None:
    """Run the command. An invalid setting or a full disk is reported in one line, Ctrl-C without a message."""
    _repair_streams()
    try:
        require_own_packages()
        from queue_manager.cli.commands import cli

        cli()
    except ConfigurationError as error:
        print(f"queue-manager: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # while the modules are imported; afterwards the command itself ends with the same code
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        from queue_manager.cli.errors import fail_to_write

        fail_to_write(error)


def _repair_streams() -> None:
    """Replace streams that were closed, such as by `<&-`, and escape what the encoding of a terminal does not have."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - open until the process ends
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
