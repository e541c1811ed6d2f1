"""Celery beat with leader election: the scheduler, the leader lock, the numbers of its ticks."""
