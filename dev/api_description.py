"""The OpenAPI description of the API with everything switched on: `python -m dev.api_description` prints it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from queue_manager.core.settings import Settings
from queue_manager.web.app import api_of
from queue_manager.web.routes.docs import openapi_of

EVERYTHING: dict[str, Any] = {
    "qm_message_queue": True,
    "qm_jobs": True,
    "qm_hooks": True,
    "qm_api_keys": [{"name": "generator", "key": "a-key-that-nobody-ever-uses-0123456789", "role": "viewer"}],
}


def main() -> None:
    print(json.dumps(api_description(), indent=1))


def api_description() -> dict[str, Any]:
    return openapi_of(api_of(Settings(**EVERYTHING), asyncio.Event()))


if __name__ == "__main__":
    main()
