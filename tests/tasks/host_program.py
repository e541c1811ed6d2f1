"""A program with a Celery application of its own that calls one of our tasks; prints what it found as JSON.

HOST_BROKER_URL  the broker of its own application
"""

from __future__ import annotations

import json
import os

from celery import Celery, current_app, shared_task

app = Celery("host", broker=os.environ["HOST_BROKER_URL"])


@shared_task(name="host.invoice")
def invoice(number: int) -> int:
    return number


from tasks.support_snooze import unsnooze_room  # noqa: E402

invoice.delay(1)
unsnooze_room.delay("65b9f0a2c3d4e5f6a7b8c9d0")
invoice.delay(2)

found = {
    "current": current_app.main,
    "app_of_invoice": invoice.app.main,
    "tasks_of_host": sorted(name for name in app.tasks if not name.startswith("celery.")),
}
app.pool.force_close_all()
unsnooze_room.app.pool.force_close_all()
print(json.dumps(found))
