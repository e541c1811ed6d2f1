"""The `queue-manager` command."""

from __future__ import annotations

import sys

from queue_manager.core.errors import ConfigurationError
from queue_manager.core.imports import require_own_packages


def main() -> None:
    """Run the command. A wrong setting is one clear message and exit code 2."""
    try:
        require_own_packages()
        from queue_manager.cli.commands import cli

        cli()
    except ConfigurationError as error:
        print(f"queue-manager: {error}", file=sys.stderr)
        sys.exit(2)
