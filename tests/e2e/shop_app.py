"""Another application on the same Redis: stock Celery and RedBeat. Each task writes its number into Redis."""

from __future__ import annotations

import os
import time

import redis
from celery import Celery

URL = os.environ.get("SHOP_URL", "redis://127.0.0.1:6379/0")

app = Celery("shop", broker=URL, set_as_current=False)
app.conf.task_acks_late = True
app.conf.redbeat_redis_url = URL
app.conf.redbeat_redis_options = {}
app.conf.beat_scheduler = "redbeat.RedBeatScheduler"
app.conf.beat_max_loop_interval = 1
app.conf.beat_schedule = {"charge": {"task": "shop.charge", "schedule": 1, "args": [7]}}


@app.task(name="shop.charge")
def charge(number: int, seconds: float = 0) -> None:
    with redis.Redis.from_url(URL) as client:
        client.rpush("shop:charged", number)
    time.sleep(seconds)
