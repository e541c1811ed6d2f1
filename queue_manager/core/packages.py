"""The top-level packages of Queue Manager, which another package of the same name may hide."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from queue_manager.core.errors import ConfigurationError

TOP_LEVEL = ("beat_schedule", "models", "services", "tasks")
HOME = Path(__file__).parents[2]


@cache
def require_own_packages() -> None:
    """Raise ConfigurationError if Python would import another package instead of one of ours; names both places."""
    for name in TOP_LEVEL:
        spec = find_spec(name)
        found = Path(spec.origin) if spec and spec.origin else None
        if found is None or HOME not in found.parents:
            raise ConfigurationError(
                f"Python imports {name!r} from {found or 'nowhere'} instead of {HOME}: rename that package, or start "
                f"the process where it is not on the path ({', '.join(filter(None, sys.path[:3]))}, …)"
            )
