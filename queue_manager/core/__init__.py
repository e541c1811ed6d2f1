"""What every layer may import: settings, clock, errors, retry policy, schedule entries, structured log."""
