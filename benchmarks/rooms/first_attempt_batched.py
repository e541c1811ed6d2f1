"""The first attempt on our transport: what the transport alone is worth."""

from __future__ import annotations

import os

from benchmarks.rooms.first_attempt import app
from queue_manager.broker.options import register_transport

app.conf.broker_transport = register_transport(os.environ["REDIS_URL"])
app.conf.broker_transport_options = {"priority_steps": [0], "visibility_timeout": 30}
