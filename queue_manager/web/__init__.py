"""The web process: the dashboard, the HTTP API, live events, Socket.IO, probes and metrics."""
