"""Rooms whose snooze has ended, from the scan to the event: real workers, beside Celery as one would first write it."""
