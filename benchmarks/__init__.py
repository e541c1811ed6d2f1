"""Benchmarks: our way compared with the obvious one, on a real server, in one run; `make bench`."""
