"""The first attempt on our transport: what the transport alone is worth."""

from __future__ import annotations

import os

from benchmarks.rooms.first_attempt import app
from queue_manager.broker.registration import install

app.conf.broker_transport = install(os.environ["REDIS_URL"])
app.conf.broker_transport_options = {"priority_steps": [0], "visibility_timeout": 30}
