"""Benchmarks: our way beside the obvious one, on a real server, in one run; `make bench`."""
