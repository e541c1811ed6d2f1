"""Health of servers, processes, scans and systems: what was read of them, and the problems in it."""

from queue_manager.health.problems import all_problems, problems_of_components, problems_of_system
from queue_manager.health.readings import Readings, read
from queue_manager.health.report import Health, health

__all__ = [
    "Health",
    "Readings",
    "all_problems",
    "health",
    "problems_of_components",
    "problems_of_system",
    "read",
]
