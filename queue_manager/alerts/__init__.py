"""Alerts: problems of health that last, sent to a webhook and by mail."""

from queue_manager.alerts.watch import alerting

__all__ = ["alerting"]
