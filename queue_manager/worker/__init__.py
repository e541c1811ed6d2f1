"""What a worker does besides its tasks: start checks, lease renewal, worker heartbeats, pauses, bounded shutdown."""
