"""Another application on the same Redis: stock Celery, nothing of ours. Each task writes its number into Redis."""

from __future__ import annotations

import os
import time

import redis
from celery import Celery

URL = os.environ.get("SHOP_URL", "redis://127.0.0.1:6379/0")

app = Celery("shop", broker=URL, set_as_current=False)
app.conf.task_acks_late = True


@app.task(name="shop.charge")
def charge(number: int, seconds: float = 0) -> None:
    with redis.Redis.from_url(URL) as client:
        client.rpush("shop:charged", number)
    time.sleep(seconds)
