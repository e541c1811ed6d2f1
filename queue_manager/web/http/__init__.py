"""The parts of HTTP that all routes share: errors, requests, responses, cursors and middleware."""
