"""Addresses of this machine's loopback interface, which the network does not see."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return True if `host`, a name or an address, is this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
