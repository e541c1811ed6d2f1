"""The message queue: its requeue beside the algorithm that polls pending lists, and what an operation costs."""
