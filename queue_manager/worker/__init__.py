"""What a worker does besides its tasks: checks at its start, renewal of leases, presence, pauses, bounded shutdown."""
