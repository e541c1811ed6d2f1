"""The `web` process: manual triggers, Socket.IO, probes and metrics for programs, and a page for people."""
