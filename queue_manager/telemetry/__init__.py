"""What processes report about themselves through Redis: counters, history, heartbeats of workers."""
