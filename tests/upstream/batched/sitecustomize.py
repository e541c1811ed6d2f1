"""Makes `redis://` our transport, in each Python process that has this folder in its PYTHONPATH."""

import kombu.transport

from queue_manager.broker.options import BATCHED_TRANSPORTS

kombu.transport.TRANSPORT_ALIASES.update(BATCHED_TRANSPORTS)
