"""The checks of `queue-manager doctor`: installation, settings, servers and processes."""

from queue_manager.doctor.report import Report, examine

__all__ = ["Report", "examine"]
