"""The OpenAPI description of the API with everything switched on: `python -m dev.api_description` prints it."""

from __future__ import annotations

import asyncio
import json
import os

EVERYTHING = {
    "QM_MESSAGE_QUEUE": "true",
    "QM_JOBS": "true",
    "QM_HOOKS": "true",
    "QM_API_KEYS": '[{"name": "generator", "key": "a-key-that-nobody-ever-uses-0123456789", "role": "viewer"}]',
}


def main() -> None:
    os.environ.update(EVERYTHING)
    from queue_manager.core.settings import settings  # reads the environment
    from queue_manager.web.app import api_of
    from queue_manager.web.routes.docs import openapi_of

    print(json.dumps(openapi_of(api_of(settings(), asyncio.Event())), indent=1))


if __name__ == "__main__":
    main()
