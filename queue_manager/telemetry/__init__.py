"""Telemetry of all processes in Redis: counters, history, worker heartbeats."""
