"""The `queue-manager` command."""
