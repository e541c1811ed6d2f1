"""A DNS server on loopback that knows one MongoDB deployment, and processes that ask it."""

from __future__ import annotations

import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

from dev.ports import LOOPBACK
from tests.e2e.celery_processes import ROOT

NAME = "db.0.0.1"
"""The host of the URL. The driver demands that its parent domain is that of the servers, which here are 127.0.0.1."""


@contextmanager
def dns_server(port_of_mongodb: int, *, txt: str, is_broken: Event | None = None) -> Iterator[int]:
    """Yield the port of a server that answers for `NAME`, and with SERVFAIL while `is_broken` is set."""
    records = {
        ("_mongodb._tcp." + NAME, "SRV"): f"0 0 {port_of_mongodb} {LOOPBACK}.",
        (NAME, "TXT"): f'"{txt}"',
    }

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, reply_to = self.request
            query = dns.message.from_wire(data)
            question = query.question[0]
            kind = dns.rdatatype.to_text(question.rdtype)
            found = records.get((question.name.to_text(omit_final_dot=True), kind))
            answer = dns.message.make_response(query)
            if is_broken is not None and is_broken.is_set():
                answer.set_rcode(dns.rcode.SERVFAIL)
            elif found is None:
                answer.set_rcode(dns.rcode.NXDOMAIN)
            else:
                answer.answer.append(dns.rrset.from_text(question.name, 60, "IN", kind, found))
            reply_to.sendto(answer.to_wire(), self.client_address)

    with socketserver.ThreadingUDPServer((LOOPBACK, 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def env_with_dns(port: int) -> dict[str, str]:
    """Return the environment of a process that asks the server on this port; it must not be forked."""
    return {"PYTHONPATH": f"{Path(__file__).parent / 'own_dns'}:{ROOT}", "OWN_DNS_PORT": str(port)}
