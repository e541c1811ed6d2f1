"""Health of servers, processes, scans and systems: what was read of them, the problems in it, and the report."""
