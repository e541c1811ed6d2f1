"""Servers as operators run them: behind Sentinel, with TLS, on sockets, with users that may do only what is needed."""
