"""Rooms whose snooze has ended, from the scan to the event: real workers, compared with a first draft in Celery."""
