"""A real nginx or Caddy with the configuration of `deploy/`, in front of a real web process."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path

from dev.children import spawn
from dev.ports import free_port, is_answering
from tests.deployment.installation import ROOT, run
from tests.deployment.programs import program, replaced
from tests.documented import DOCS, block
from tests.eventually import eventually
from tests.web.web_process import Answer, Web

NGINX, CADDY = ROOT / "deploy" / "nginx" / "queue-manager.conf", ROOT / "deploy" / "caddy" / "Caddyfile"
# Every path that an nginx which runs as an ordinary user may not write to by default.
NGINX_MAIN = """
{user}
daemon off;
pid {directory}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    include {included};
}}
"""
CADDY_OPTIONS = """{{
	admin off
	auto_https off
	storage file_system {directory}
}}
"""


@dataclass(frozen=True)
class Proxy:
    """The address of a proxy, and the web process behind it."""

    web: Web
    port: int
    prefix: str
    tls: ssl.SSLContext

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        """Send a request over TLS."""
        began = time.monotonic()
        with self.response(method, path, body, **headers) as response:
            return Answer(response.status, response.headers, response.read().decode(), time.monotonic() - began)

    @contextmanager
    def response(self, method: str, path: str, body: str | None = None, **headers: str) -> Iterator[HTTPResponse]:
        """Send a request over TLS; the block may read the response while it arrives."""
        connection = HTTPSConnection("localhost", self.port, timeout=90, context=self.tls)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, self.prefix + path, body=body, headers=named)
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()


@contextmanager
def proxy(name: str, web: Web, prefix: str, directory: Path) -> Iterator[Proxy]:
    """Start a proxy on a free port, with a certificate of its own."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    make_certificate(certificate, key)
    port = free_port()
    configure = nginx_command if name == "nginx" else caddy_command
    command, check = configure(directory, web.port, port, prefix, certificate, key)
    run(*check)
    with (directory / f"{name}.log").open("wb") as log:
        child = spawn(command, cwd=directory, env={**os.environ, "HOME": str(directory)}, stdout=log, stderr=log)
    try:
        eventually(lambda: is_answering(port))
        yield Proxy(web, port, prefix, ssl.create_default_context(cafile=str(certificate)))
    finally:
        child.kill()


def make_certificate(certificate: Path, key: Path) -> None:
    request = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost")
    names = ("-addext", "subjectAltName=DNS:localhost")
    run(program("openssl", package="openssl"), "req", *request, *names, "-keyout", key, "-out", certificate)


def nginx_command(
    directory: Path, web_port: int, port: int, prefix: str, certificate: Path, key: Path
) -> tuple[list[str], list[str]]:
    """Return the commands that start nginx, and that check its configuration."""
    site, main = directory / "queue-manager.conf", directory / "nginx.conf"
    values = {
        "127.0.0.1:6002": f"127.0.0.1:{web_port}",
        "listen 80;": f"listen 127.0.0.1:{free_port()};",
        "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
        "/etc/nginx/queue-manager.crt": str(certificate),
        "/etc/nginx/queue-manager.key": str(key),
        **(location_of(prefix) if prefix else {}),
    }
    site.write_text(replaced(NGINX.read_text(), values))
    user = "user root;" if os.getuid() == 0 else ""
    main.write_text(NGINX_MAIN.format(user=user, directory=directory, included=site))
    command = [program("nginx", package="nginx-light"), "-e", "stderr", "-c", str(main)]
    return command, [*command, "-t"]


def location_of(prefix: str) -> dict[str, str]:
    """Return what the documented block for a path changes."""
    location, pass_on, *_ = block(0, heading="Behind a proxy", page=DOCS / "how-to" / "deploy.md").splitlines()
    assert location == f"location {prefix}/ {{"
    assert pass_on in NGINX.read_text()
    return {"location / {": location}


def caddy_command(
    directory: Path, web_port: int, port: int, prefix: str, certificate: Path, key: Path
) -> tuple[list[str], list[str]]:
    """Return the commands that start Caddy, and that check its configuration."""
    file = directory / "Caddyfile"
    values = {
        "queue-manager.example {": f"https://localhost:{port} {{\n\ttls {certificate} {key}",
        "reverse_proxy 127.0.0.1:6002": f"reverse_proxy {prefix}/* 127.0.0.1:{web_port}",
    }
    file.write_text(CADDY_OPTIONS.format(directory=directory) + replaced(CADDY.read_text(), values))
    caddy, options = program("caddy", package="caddy"), ["--config", str(file)]
    return [caddy, "run", *options], [caddy, "validate", *options]
