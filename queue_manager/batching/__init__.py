"""Items of one kind that wait in a worker are executed together; many items are published together."""
