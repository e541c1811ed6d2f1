"""The systems over HTTP: the state of each, live; its items, its scans; the schedule, the workers.

Guarantee: the numbers of an unavailable server are null, with the reason, within about 3 s; the servers are read at
most once a second, however many pages are open, and not at all while none is.
"""
