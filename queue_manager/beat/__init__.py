"""Celery beat with stand-bys: the scheduler, the leader lock, the numbers of its ticks."""
