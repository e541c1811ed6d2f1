"""A DNS server on loopback that knows one MongoDB deployment."""

from __future__ import annotations

import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

from dev.ports import LOOPBACK

NAME = "db.0.0.1"
"""The host of the URL. The driver demands that its parent domain is that of the servers, which here are 127.0.0.1."""


@contextmanager
def dns_server(port_of_mongodb: int, *, txt: str) -> Iterator[int]:
    """Yield the port of a server that answers for `NAME`."""
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
            if found is None:
                answer.set_rcode(dns.rcode.NXDOMAIN)
            else:
                answer.answer.append(dns.rrset.from_text(question.name, 60, "IN", kind, found))
            reply_to.sendto(answer.to_wire(), self.client_address)

    with socketserver.ThreadingUDPServer((LOOPBACK, 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
