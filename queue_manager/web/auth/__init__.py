"""Access to the web process: API keys for programs, sessions for people, one required role per route.

Guarantee: without keys only this machine is served, and may do everything. With keys every route that is not `public`
needs one, also while a client stays connected. Every action is logged with its principal.
"""
