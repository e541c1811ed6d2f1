"""Put first on PYTHONPATH: names are asked from the DNS server on 127.0.0.1 at the port OWN_DNS_PORT."""

from __future__ import annotations

import os

import dns.asyncresolver
import dns.resolver

for _module, _kind in ((dns.resolver, dns.resolver.Resolver), (dns.asyncresolver, dns.asyncresolver.Resolver)):
    _module.default_resolver = _kind(configure=False)  # type: ignore[attr-defined]
    _module.default_resolver.nameservers = ["127.0.0.1"]
    _module.default_resolver.port = int(os.environ["OWN_DNS_PORT"])
