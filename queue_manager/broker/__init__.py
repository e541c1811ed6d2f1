"""The batched, crash-safe Redis transport for kombu, and its dead letters."""
