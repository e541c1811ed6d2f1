"""Basics that every layer imports: settings, clock, errors, retry policy, Redis clients, structured log."""
