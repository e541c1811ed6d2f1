"""The message queue: its requeue compared with the algorithm that polls pending lists, and what an operation costs."""
