"""The parts of HTTP that all routes share: errors, requests and middleware."""
