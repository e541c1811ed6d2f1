"""Makes `redis://` our transport, in each Python process that has this folder in its PYTHONPATH."""

import kombu.transport

from queue_manager.broker.options import BATCHED_TRANSPORT

kombu.transport.TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss", "sentinel"), BATCHED_TRANSPORT))
