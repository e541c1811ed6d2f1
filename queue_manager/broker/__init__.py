"""The batched, crash-safe Redis transport for kombu, and what it keeps in Redis."""
